"""Policies that ask the cheap model how strange a prompt is to it, or how sure its answer is."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, get_args

from infopt.errors import ConfigError, MeasurementError
from infopt.select.routing.policy import POLICIES, PairPolicy
from infopt.select.routing.request import RouteRequest

ConfidenceMeasure = Literal["mean_logprob", "margin"]


@dataclass(frozen=True, slots=True, kw_only=True)
class PerplexityPolicy(PairPolicy):
    """Sends prompts that the cheap model finds strange to the strong model.

    Attributes:
        threshold: Lowest mean surprise (minus log-probability) per token of the prompt, in nats.
    """

    kind = "perplexity"
    evidence = "prompt_logprob"

    def need(self, request: RouteRequest) -> float:
        """Return the mean surprise."""
        if request.prompt_logprob is None:
            raise _lacking(self.kind, "prompt_logprob")
        return -request.prompt_logprob


@dataclass(frozen=True, slots=True, kw_only=True)
class CascadePolicy(PairPolicy):
    """Lets the cheap model answer, and asks the strong one where it was not sure.

    Attributes:
        threshold: Lowest doubt that is asked again. By ``mean_logprob`` the mean surprise of the
            answer's tokens in nats; by ``margin`` 1 / (1 + exp(margin)), the runner-up's share.
        measure: What tells how sure the cheap model was.
    """

    kind = "cascade"
    evidence = "answer"
    measure: ConfidenceMeasure = "mean_logprob"

    def __post_init__(self) -> None:
        """Check the values."""
        super(CascadePolicy, self).__post_init__()
        if self.measure not in get_args(ConfidenceMeasure):
            raise ConfigError(
                f"measure must be one of {', '.join(get_args(ConfidenceMeasure))}, "
                f"got {self.measure!r}.",
                field="measure",
                value=self.measure,
            )

    def need(self, request: RouteRequest) -> float:
        """Return the doubt about the cheap model's answer."""
        if request.confidence is None:
            raise _lacking(self.kind, "confidence")
        if self.measure == "mean_logprob":
            return -request.confidence.mean_logprob
        return 1 / (1 + math.exp(min(request.confidence.margin, 700.0)))


def _lacking(kind: str, what: str) -> MeasurementError:
    return MeasurementError(
        f"The policy {kind} needs {what}.",
        field=what,
        remedy="Ask the cheap model first, or use a policy that reads the prompt alone.",
    )


POLICIES.register("perplexity")(PerplexityPolicy)
POLICIES.register("cascade")(CascadePolicy)
