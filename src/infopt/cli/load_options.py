"""`LoadOptions`: how ``infopt bench serve`` sends a workload."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from infopt.errors import ConfigError


@dataclass(frozen=True, slots=True)
class LoadOptions:
    """Options of the load; workload, rates and objective are apart.

    Attributes:
        endpoint: ``completions`` sends prompts as they are, ``chat`` as a user's message.
        prompt: Token ids or text; ids by default, where endpoint and tokenizer allow.
        arrivals: How requests are spread; by default as the workload says, or Poisson.
        cv: Coefficient of variation of ``gamma`` arrivals (1 is Poisson, more is burstier).
        burst_size: Requests per burst of ``burst`` arrivals.
        duration: Seconds of arrivals per rate, in place of the number of requests.
        max_concurrency: Connections of the client; what waits for one counts from its schedule.
        timeout: Longest time of a request in seconds, from sending.
        warmup: Requests sent and answered before each rate, which no figure counts.
        respect_eos: Let answers end early, in place of as many tokens as the workload says.
        seed: Seed of the workload; each further rate takes the next one.
        target_share: Share of requests that has to keep the objective up to the saturation point.
        refine: Further rates that narrow the saturation point down.
    """

    endpoint: Literal["completions", "chat"] = "completions"
    prompt: Literal["ids", "text"] | None = None
    arrivals: Literal["poisson", "gamma", "constant", "burst"] | None = None
    cv: float | None = None
    burst_size: int | None = None
    duration: float | None = None
    max_concurrency: int | None = None
    timeout: float = 600.0
    warmup: int = 2
    respect_eos: bool = False
    seed: int = 0
    target_share: float = 0.9
    refine: int = 0

    def __post_init__(self) -> None:
        """Refuse options that would have no effect.

        Raises:
            ConfigError: Names the option.
        """
        for name, kind in (("cv", "gamma"), ("burst_size", "burst")):
            if (getattr(self, name) is not None) != (self.arrivals == kind):
                raise ConfigError(
                    f"--{name.replace('_', '-')} belongs to --arrivals {kind}.",
                    field=name,
                    value=getattr(self, name),
                    remedy="Give both or neither.",
                )
        for name in ("warmup", "seed", "refine"):
            if getattr(self, name) < 0:
                raise ConfigError(
                    f"{name} must be at least 0, got {getattr(self, name)}.",
                    field=name,
                    value=getattr(self, name),
                )

    @property
    def arrival_process(self) -> dict[str, Any] | None:
        """The arrival process without its rate (None: the workload's own)."""
        if self.arrivals is None:
            return None
        options = {"cv": self.cv, "burst_size": self.burst_size}
        return {"kind": self.arrivals, **{k: v for k, v in options.items() if v is not None}}
