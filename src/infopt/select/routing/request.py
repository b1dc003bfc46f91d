"""What a routing policy knows about a request, and what it decides."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from infopt.errors import MeasurementError

Evidence = Literal["prompt", "prompt_logprob", "answer"]
"""What a policy must see: the text alone, how well the cheap model predicts the prompt, or the
cheap model's own answer."""


@dataclass(frozen=True, slots=True)
class Confidence:
    """How sure a model was of its answer.

    Attributes:
        mean_logprob: Mean log-probability of the answer's tokens, in nats (at most 0).
        margin: Mean lead of the answer over the next best: token over runner-up token where text
            is generated, choice over runner-up choice (per token) where choices are ranked. In
            nats, at least 0 for greedy answers.
    """

    mean_logprob: float
    margin: float

    def __post_init__(self) -> None:
        """Refuse what is no number."""
        for name in ("mean_logprob", "margin"):
            value = getattr(self, name)
            if not math.isfinite(value):
                raise MeasurementError(f"{name} is {value!r}.", field=name, value=value)


@dataclass(frozen=True, slots=True)
class RouteRequest:
    """A request as policies see it.

    Attributes:
        prompt: Its text; of a conversation, the texts of all messages.
        prompt_logprob: Mean log-probability of the prompt's tokens under the cheap model, in nats;
            None where no policy asked for it.
        confidence: Of the cheap model's answer; None before it has answered.
    """

    prompt: str
    prompt_logprob: float | None = None
    confidence: Confidence | None = None


@dataclass(frozen=True, slots=True)
class Decision:
    """Which model is to answer.

    Attributes:
        model: Its name.
        label: Why, in a word out of a fixed set, for counting.
        reason: Why, with the numbers, in ASCII.
    """

    model: str
    label: str
    reason: str


def confidence_of(logprobs: Sequence[float], runners_up: Sequence[float]) -> Confidence:
    """Return the confidence of a generated answer.

    Args:
        logprobs: Log-probability of each token, in nats.
        runners_up: Highest log-probability of any other token at the same position.

    Raises:
        MeasurementError: If there are no tokens, or not as many runners-up.
    """
    if not logprobs or len(logprobs) != len(runners_up):
        raise MeasurementError(
            f"A confidence needs tokens and one runner-up each, got {len(logprobs)} and "
            f"{len(runners_up)}.",
            field="logprobs",
            value=len(logprobs),
        )
    count = len(logprobs)
    lead = sum(own - other for own, other in zip(logprobs, runners_up, strict=True))
    return Confidence(sum(logprobs) / count, lead / count)
