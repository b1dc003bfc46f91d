"""A/B: identical prompts to every model, compared in pairs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from infopt.bench.stats import PairedRatio, paired_ratio
from infopt.errors import ConfigError
from infopt.evals.intervals import PairedDifference, paired_difference
from infopt.select.routing.items import (
    RoutingItem,
    check_items,
    cost_units,
    costs_of,
    qualities,
)


@dataclass(frozen=True, slots=True)
class PairedModels:
    """A model against the reference on the same prompts.

    Attributes:
        model: The model.
        reference: What it is compared with.
        group: Kind of task; None is all.
        num_items: Prompts.
        quality: Mean quality of the model.
        reference_quality: The same of the reference.
        paired: Their difference with its interval, prompts lost and gained, and McNemar's test.
        cost_ratios: By unit, model over reference, prompt by prompt.
    """

    model: str
    reference: str
    group: str | None
    num_items: int
    quality: float
    reference_quality: float
    paired: PairedDifference
    cost_ratios: dict[str, PairedRatio]

    def to_dict(self) -> dict[str, Any]:
        """Return plain data; the parts of `paired` stand beside the rest."""
        data = asdict(self)
        del data["paired"]
        return data | asdict(self.paired)


def compare_models(
    items: Sequence[RoutingItem], models: Sequence[str], *, seed: int = 0
) -> list[PairedModels]:
    """Compare every model with the first one, over all prompts and by group.

    Args:
        items: Prompts that all models have answered.
        models: At least two.
        seed: Of the resampling.

    Raises:
        ConfigError: If there are no items or fewer than two models, or an item lacks a quality.
    """
    check_items(items)
    if len(set(models)) < 2:
        raise ConfigError(
            f"A comparison needs at least two models, got {list(models)}.", field="models"
        )
    groups = sorted({item.group for item in items})
    parts: list[str | None] = [None, *(groups if len(groups) > 1 else ())]
    reference, *others = models
    return [_compare(items, model, reference, group, seed) for model in others for group in parts]


def _compare(
    items: Sequence[RoutingItem], model: str, reference: str, group: str | None, seed: int
) -> PairedModels:
    inside = [item for item in items if group is None or item.group == group]
    own, other = qualities(inside, model), qualities(inside, reference)
    return PairedModels(
        model=model,
        reference=reference,
        group=group,
        num_items=len(inside),
        quality=float(own.mean()),
        reference_quality=float(other.mean()),
        paired=paired_difference(own - other, seed=seed),
        cost_ratios=_cost_ratios(inside, model, reference, seed),
    )


def _cost_ratios(
    items: Sequence[RoutingItem], model: str, reference: str, seed: int
) -> dict[str, PairedRatio]:
    ratios = {}
    for unit in cost_units(items, (model, reference)):
        own, other = costs_of(items, model, unit), costs_of(items, reference, unit)
        if (own > 0).all() and (other > 0).all():
            ratios[unit] = paired_ratio(
                other.tolist(), own.tolist(), higher_is_better=False, seed=seed
            )
    return ratios
