"""Service-level objectives, and the goodput under them.

An objective is judged in two ways. *Goodput* asks of each request whether it met every limit; a
request that failed or never ended has missed them. *Attainment* asks whether the stated percentile
over the requests is within each limit, and does not answer where the sample is too small.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from infopt.bench.latency import RequestStatus
from infopt.bench.options import check_positive
from infopt.bench.stats import percentile
from infopt.errors import WorkloadError, check_known_keys
from infopt.registry import Registry

_LIMITS = ("ttft_s", "tpot_s", "itl_s", "e2e_s")


class JudgedRequest(Protocol):
    """What an objective asks of a request (see `RequestTiming`)."""

    @property
    def status(self) -> RequestStatus:
        """Only ``completed`` requests can meet a limit."""
        ...

    @property
    def ttft_s(self) -> float | None:
        """Time to first token."""
        ...

    @property
    def tpot_s(self) -> float | None:
        """Time per output token; None for one token."""
        ...

    @property
    def itl_s(self) -> list[float]:
        """Gaps between tokens."""
        ...

    @property
    def e2e_s(self) -> float | None:
        """Time to the end of the answer."""
        ...


@dataclass(frozen=True, slots=True)
class SLO:
    """Upper limits on latency; None is no limit.

    Attributes:
        ttft_s: Time to first token.
        tpot_s: Time per output token of a request (answers of one token meet it).
        itl_s: Gap between tokens: ``percentile`` % of a request's gaps must be within it.
        e2e_s: Time to the end of the answer.
        percentile: Which percentile over the requests has to be within the limits.
    """

    ttft_s: float | None = None
    tpot_s: float | None = None
    itl_s: float | None = None
    e2e_s: float | None = None
    percentile: float = 99.0

    def __post_init__(self) -> None:
        """Check the limits.

        Raises:
            WorkloadError: A limit is not positive, there is none, or the percentile is not in
                (0, 100).
        """
        for name in self.limits:
            check_positive(name, getattr(self, name))
        if not self.limits:
            raise WorkloadError(
                "An SLO needs at least one limit.",
                field="slo",
                remedy=f"Set one of: {', '.join(_LIMITS)}.",
            )
        check_positive("percentile", self.percentile)
        if self.percentile >= 100:
            raise WorkloadError(
                f"percentile must be below 100, got {self.percentile!r}.",
                field="percentile",
                value=self.percentile,
            )

    @classmethod
    def from_spec(cls, spec: str | Mapping[str, Any]) -> SLO:
        """Return the preset of a name, or an objective from plain data.

        Raises:
            ConfigError: Unknown preset or key (with the nearest valid one).
        """
        if isinstance(spec, str):
            return PRESETS.get(spec)
        check_known_keys(spec, [f.name for f in dataclasses.fields(cls)], "SLO")
        return cls(**spec)

    @property
    def limits(self) -> dict[str, float]:
        """The limits that are set, by name."""
        return {n: getattr(self, n) for n in _LIMITS if getattr(self, n) is not None}

    def to_dict(self) -> dict[str, float | None]:
        """Return plain data that `from_spec` reads back."""
        return dataclasses.asdict(self)

    def misses(self, timing: JudgedRequest) -> list[str]:
        """Return the limits that a request missed: all of them unless it completed."""
        if timing.status != "completed":
            return list(self.limits)
        return [name for name, limit in self.limits.items() if not self._meets(timing, name, limit)]

    def _meets(self, timing: JudgedRequest, name: str, limit: float) -> bool:
        if name == "itl_s":
            gaps = timing.itl_s
            return sum(g <= limit for g in gaps) * 100 >= self.percentile * len(gaps)
        value = getattr(timing, name)
        # A completed request has a TTFT and an end; only TPOT can be undefined (one token).
        return value is None or value <= limit


@dataclass(frozen=True, slots=True)
class SLOReport:
    """How well a run kept an objective.

    Attributes:
        num_requests: All requests, failed ones included.
        num_met: Requests that met every limit.
        goodput_share: ``num_met / num_requests`` (None without requests).
        goodput_requests_per_s: ``num_met`` per second of the run (None without a duration).
        num_misses: Requests that missed, by limit.
        attained: The stated percentile per limited quantity, over completed requests (None: sample
            too small).
        is_met: Whether all of ``attained`` are within the limits; False also when requests failed
            in a greater share than the percentile allows; None when it cannot be told.
    """

    num_requests: int
    num_met: int
    goodput_share: float | None
    goodput_requests_per_s: float | None
    num_misses: dict[str, int]
    attained: dict[str, float | None]
    is_met: bool | None

    def to_dict(self) -> dict[str, Any]:
        """Return plain data."""
        return dataclasses.asdict(self)


def evaluate_slo(slo: SLO, timings: Sequence[JudgedRequest], duration_s: float | None) -> SLOReport:
    """Judge a run.

    Args:
        slo: The objective.
        timings: All measured requests, failed ones included.
        duration_s: Length of the run in seconds.
    """
    misses = [slo.misses(t) for t in timings]
    num_met = sum(not m for m in misses)
    attained = {name: percentile(_samples(timings, name), slo.percentile) for name in slo.limits}
    return SLOReport(
        num_requests=len(timings),
        num_met=num_met,
        goodput_share=num_met / len(timings) if timings else None,
        goodput_requests_per_s=num_met / duration_s if duration_s else None,
        num_misses={name: sum(name in m for m in misses) for name in slo.limits},
        attained=attained,
        is_met=_is_met(slo, timings, attained),
    )


def _samples(timings: Sequence[JudgedRequest], name: str) -> list[float]:
    done = [t for t in timings if t.status == "completed"]
    if name == "itl_s":
        return [gap for t in done for gap in t.itl_s]
    return [v for t in done if (v := getattr(t, name)) is not None]


def _is_met(
    slo: SLO, timings: Sequence[JudgedRequest], attained: Mapping[str, float | None]
) -> bool | None:
    num_failed = sum(t.status != "completed" for t in timings)
    if num_failed * 100 > (100 - slo.percentile) * len(timings):
        return False
    within = [v is None or v <= slo.limits[name] for name, v in attained.items()]
    if not all(within):
        return False
    return None if None in attained.values() else True


PRESETS: Registry[SLO] = Registry("SLO preset")
PRESETS.register("chat")(SLO(ttft_s=0.2, itl_s=0.05))
PRESETS.register("retrieval")(SLO(ttft_s=0.3, itl_s=0.1))
PRESETS.register("agentic")(SLO(e2e_s=5.0))
PRESETS.register("content")(SLO(ttft_s=0.6, itl_s=0.2))
PRESETS.register("code-generation")(SLO(ttft_s=0.5, itl_s=0.15))
PRESETS.register("completion")(SLO(e2e_s=2.0))
