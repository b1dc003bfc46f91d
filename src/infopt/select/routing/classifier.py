"""`ClassifierPolicy`: what the strong model is expected to gain, read off the prompt."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from infopt.errors import ConfigError
from infopt.select.routing.features import NUM_FEATURES, prompt_features
from infopt.select.routing.logistic import LogisticFit, sigmoid
from infopt.select.routing.policy import POLICIES, PairPolicy, check_number
from infopt.select.routing.request import RouteRequest

_DIGITS = 6
"""Of the weights in a file."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassifierPolicy(PairPolicy):
    """Sends prompts to the strong model from an expected gain on.

    The need is P(strong is right) - P(cheap is right), each by a calibrated logistic regression on
    `prompt_features`: it orders prompts by what the strong model adds, so that a prompt that both
    or neither can answer stays cheap.

    Attributes:
        threshold: Lowest expected gain that goes to the strong model, from -1 to 1.
        cheap_weights: One per feature.
        cheap_bias: The constant beside them.
        strong_weights: One per feature.
        strong_bias: The constant beside them.
    """

    kind = "classifier"
    cheap_weights: tuple[float, ...]
    cheap_bias: float
    strong_weights: tuple[float, ...]
    strong_bias: float

    def __post_init__(self) -> None:
        """Check the values; weights may be lists, as in a file."""
        super(ClassifierPolicy, self).__post_init__()
        for side in ("cheap", "strong"):
            check_number(f"{side}_bias", getattr(self, f"{side}_bias"))
            object.__setattr__(self, f"{side}_weights", _weights(self, f"{side}_weights"))

    @classmethod
    def of_fits(
        cls, cheap: str, strong: str, cheap_fit: LogisticFit, strong_fit: LogisticFit
    ) -> ClassifierPolicy:
        """Return the policy of two fits, with the threshold at "any gain"."""
        return cls(
            cheap=cheap,
            strong=strong,
            threshold=0.0,
            cheap_weights=tuple(np.round(cheap_fit.weights, _DIGITS).tolist()),
            cheap_bias=round(cheap_fit.bias, _DIGITS),
            strong_weights=tuple(np.round(strong_fit.weights, _DIGITS).tolist()),
            strong_bias=round(strong_fit.bias, _DIGITS),
        )

    def chances(self, request: RouteRequest) -> tuple[float, float]:
        """Return the chances that the cheap and the strong model are right."""
        features = prompt_features([request.prompt])[0]
        logits = (
            features @ np.array(self.cheap_weights) + self.cheap_bias,
            features @ np.array(self.strong_weights) + self.strong_bias,
        )
        cheap, strong = sigmoid(np.array(logits))
        return float(cheap), float(strong)

    def need(self, request: RouteRequest) -> float:
        """Return the expected gain."""
        cheap, strong = self.chances(request)
        return strong - cheap


def _weights(policy: ClassifierPolicy, name: str) -> tuple[float, ...]:
    values: Any = getattr(policy, name)
    if not isinstance(values, list | tuple) or len(values) != NUM_FEATURES:
        given = f"{len(values)}" if isinstance(values, list | tuple) else repr(values)
        raise ConfigError(
            f"{name} must be {NUM_FEATURES} numbers, got {given}.",
            field=name,
            remedy="Train the policy again: its features are those of another version.",
        )
    for index, value in enumerate(values):
        check_number(f"{name}[{index}]", value)
    return tuple(values)


POLICIES.register("classifier")(ClassifierPolicy)
