"""Makes policies of items that both models have answered."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from infopt.errors import ConfigError
from infopt.registry import Registry
from infopt.select.routing.classifier import ClassifierPolicy
from infopt.select.routing.curve import share_for, threshold_for
from infopt.select.routing.features import prompt_features
from infopt.select.routing.items import RoutingItem, check_items, folds_of, needs_of, qualities
from infopt.select.routing.logistic import NUM_FOLDS, Array, fit_logistic
from infopt.select.routing.model_policies import CascadePolicy, PerplexityPolicy
from infopt.select.routing.policy import PairPolicy, check_number
from infopt.select.routing.prompt_policies import (
    ClassPolicy,
    LengthPolicy,
    PromptClass,
    RandomPolicy,
)

Trainer = Callable[[Sequence[RoutingItem], str, str], tuple[PairPolicy, Array]]
"""Makes a policy of items and the names of the cheap and the strong model; also returns the need of
each item, as judged by what was trained without it."""

TRAINERS: Registry[Trainer] = Registry("trainable routing policy")

CLASSES: Mapping[str, str] = {
    "code": r"^\s*(def|class|import|from|return|for|while|if)\b.*[:(]|[{};]\s*$|```",
    "arithmetic": r"\d\s*[-+*/x=]\s*\d|\d\s*=",
    "foreign": r"[^\x00-\x7f]|\b(translate|language|word \")",
}
"""Patterns of common kinds of prompts; the first that matches counts."""

_PRIOR_ITEMS = 10
"""Prompts of average gain that each class is given, so that a class seen twice decides nothing."""


def train_policy(
    kind: str, items: Sequence[RoutingItem], cheap: str, strong: str, **target: float
) -> PairPolicy:
    """Train a policy and set its threshold, on needs that were judged out of fold.

    Args:
        kind: A name in `TRAINERS`.
        items: To train on; keep others to judge on.
        cheap: Name of the cheap model.
        strong: Name of the strong model.
        target: Either ``share`` of the strong model (half by default), or ``recover``, the share of
            the quality gap that is to be recovered; from 0 to 1.

    Raises:
        ConfigError: If the kind, a model or the target is unknown, or cannot be met.
        MeasurementError: If items lack what the policy must see, or are too few.
    """
    check_items(items)
    policy, needs = TRAINERS.get(kind)(items, cheap, strong)
    share = _share_of(policy, items, needs, target or {"share": 0.5})
    if isinstance(policy, RandomPolicy):
        return policy.at(1 - share)
    return policy.at(threshold_for(needs, share))


def _share_of(
    policy: PairPolicy, items: Sequence[RoutingItem], needs: Array, target: Mapping[str, float]
) -> float:
    if len(target) > 1 or not target.keys() <= {"share", "recover"}:
        raise ConfigError(
            f"The target must be one of share and recover, got {sorted(target)}.", field="target"
        )
    for name, value in target.items():
        check_number(name, value, 0, 1)
    if "share" in target:
        return target["share"]
    weak, strong = qualities(items, policy.cheap), qualities(items, policy.strong)
    share = share_for(needs, weak, strong, target["recover"])
    if share is None:
        raise ConfigError(
            f"{policy.strong} is no better than {policy.cheap} on these items: there is no gap to "
            "recover.",
            field="recover",
            value=target["recover"],
            remedy="Serve the cheap model, or give a share.",
        )
    return share


def _untrained(make: Callable[..., PairPolicy], **values: Any) -> Trainer:
    """Return the trainer of a policy that only has a threshold to be set."""

    def train(items: Sequence[RoutingItem], cheap: str, strong: str) -> tuple[PairPolicy, Array]:
        policy = make(cheap=cheap, strong=strong, threshold=0.0, **values)
        return policy, needs_of(policy, items)

    return train


TRAINERS.register("random")(_untrained(RandomPolicy))
TRAINERS.register("length")(_untrained(LengthPolicy))
TRAINERS.register("perplexity")(_untrained(PerplexityPolicy))
TRAINERS.register("cascade")(_untrained(CascadePolicy))
TRAINERS.register("cascade-margin")(_untrained(CascadePolicy, measure="margin"))


@TRAINERS.register("classes")
def _classes(items: Sequence[RoutingItem], cheap: str, strong: str) -> tuple[PairPolicy, Array]:
    """Give each of `CLASSES` its mean gain, drawn towards that of all prompts."""
    gains = qualities(items, strong) - qualities(items, cheap)
    blank = ClassPolicy(
        cheap=cheap,
        strong=strong,
        classes=tuple(PromptClass(name, pattern, 0.0) for name, pattern in CLASSES.items()),
    )
    found = [blank.class_of(item.request) for item in items]
    names = np.array(["other" if c is None else c.name for c in found])

    def gain_of(name: str) -> float:
        own, prior = gains[names == name], _PRIOR_ITEMS * gains.mean()
        return round(float((own.sum() + prior) / (len(own) + _PRIOR_ITEMS)), 4)

    classes = tuple(PromptClass(c.name, c.pattern, gain_of(c.name)) for c in blank.classes)
    policy = ClassPolicy(cheap=cheap, strong=strong, classes=classes, other_need=gain_of("other"))
    return policy, needs_of(policy, items)


@TRAINERS.register("classifier")
def _classifier(items: Sequence[RoutingItem], cheap: str, strong: str) -> tuple[PairPolicy, Array]:
    """Fit the chance of each model to be right."""
    features = prompt_features([item.prompt for item in items])
    folds = folds_of(items, NUM_FOLDS)
    cheap_fit, strong_fit = (
        fit_logistic(features, qualities(items, model), folds) for model in (cheap, strong)
    )
    policy = ClassifierPolicy.of_fits(cheap, strong, cheap_fit, strong_fit)
    return policy, strong_fit.out_of_fold - cheap_fit.out_of_fold
