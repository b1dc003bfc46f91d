"""Whether a server keeps the objective at a rate, and how much load it takes before it does not.

Definitions, for rates r in requests per second:

* ``share(r)`` = requests within every limit of the objective / all requests, failed ones included.
* A rate is *good* if ``share(r) >= target_share`` (0.9), else *bad*; it is *uncertain* where the
  95 % Wilson interval of the share contains the target.
* ``first_bad`` is the lowest bad rate, ``last_good`` the highest good one below it. The
  **saturation point** is ``last_good``, and the truth is in [last_good, first_bad).
* It is *undecided* where one of these two rates is uncertain, or where a rate above ``first_bad``
  was good again. More requests per rate make it certain.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from infopt.bench.latency import LatencySummary
from infopt.bench.load_result import LoadResult
from infopt.bench.slo import SLO
from infopt.bench.stats import Interval, proportion_interval

SaturationStatus = Literal["bracketed", "above", "below"]

GROWING_QUEUE = 0.9
"""Below this share of the offered rate, completions do not keep up: the queue grows as long as the
load lasts."""


@dataclass(frozen=True, slots=True)
class SweepRow:
    """One rate.

    Attributes:
        rate_per_s: What was asked for.
        offered_rate_per_s: What the schedule came to (random arrivals differ a little).
        achieved_rate_per_s: Completions per second, first to last.
        goodput_per_s: Requests within every limit, per second of the run.
        share: Share of requests within every limit, with its 95 % interval.
        is_good: Whether the share reaches the target.
        is_certain: Whether its interval is on one side of the target.
        queue_grows: Whether completions fell behind arrivals.
        latency: Percentiles of the completed requests.
        num_requests: All of them.
        num_failed: Those that did not complete.
        warnings: Of the run.
    """

    rate_per_s: float
    offered_rate_per_s: float | None
    achieved_rate_per_s: float | None
    goodput_per_s: float
    share: Interval
    is_good: bool
    is_certain: bool
    queue_grows: bool
    latency: LatencySummary
    num_requests: int
    num_failed: int
    warnings: tuple[str, ...]

    def to_dict(self) -> dict[str, Any]:
        """Return plain data."""
        return dataclasses.asdict(self) | {"latency": self.latency.to_dict()}


@dataclass(frozen=True, slots=True)
class Saturation:
    """How much load is enough.

    Attributes:
        status: ``bracketed``; ``above``: every rate was good; ``below``: none was.
        last_good_per_s: The saturation point (None: ``below``).
        first_bad_per_s: The next rate known to be too much (None: ``above``).
        target_share: Share of requests that has to be within the objective.
        doubts: Why it is undecided; empty where it is not.
    """

    status: SaturationStatus
    last_good_per_s: float | None
    first_bad_per_s: float | None
    target_share: float
    doubts: tuple[str, ...] = ()

    @property
    def bracket(self) -> tuple[float | None, float | None]:
        """Between which rates it lies."""
        return self.last_good_per_s, self.first_bad_per_s

    @property
    def is_decided(self) -> bool:
        """Whether the measurements can tell."""
        return not self.doubts

    def to_dict(self) -> dict[str, Any]:
        """Return plain data."""
        return dataclasses.asdict(self) | {"is_decided": self.is_decided}

    def sentence(self) -> str:
        """Say it in words."""
        kept = f"{self.target_share:.0%} of requests kept the objective"
        low, high = self.bracket
        if self.status == "below":
            text = f"fewer than {kept} even at {high:.3g} requests/s, the lowest rate tried"
        elif self.status == "above":
            text = f"{kept} up to {low:.3g} requests/s, the highest rate tried: it takes more"
        else:
            text = f"{kept} up to {low:.3g} requests/s and no longer at {high:.3g}"
        return text if self.is_decided else f"{text} (undecided: {'; '.join(self.doubts)})"


def sweep_row(rate: float, result: LoadResult, slo: SLO, target_share: float) -> SweepRow:
    """Judge the run at one rate."""
    report = result.evaluate(slo)
    share = proportion_interval(report.num_met, report.num_requests)
    offered, achieved = result.offered_rate_per_s, result.achieved_rate_per_s
    return SweepRow(
        rate_per_s=rate,
        offered_rate_per_s=offered,
        achieved_rate_per_s=achieved,
        goodput_per_s=report.goodput_requests_per_s or 0.0,
        share=share,
        is_good=share.estimate >= target_share,
        is_certain=not share.low <= target_share <= share.high,
        queue_grows=offered is not None and (achieved or 0.0) < GROWING_QUEUE * offered,
        latency=result.latency,
        num_requests=report.num_requests,
        num_failed=report.num_requests - result.status_counts["completed"],
        warnings=tuple(result.warnings),
    )


def saturation_of(rows: Sequence[SweepRow], target_share: float) -> Saturation:
    """Return the saturation point of measured rates (see the module for the definition)."""
    rows = sorted(rows, key=lambda row: row.rate_per_s)
    first_bad = next((row for row in rows if not row.is_good), None)
    below = [row for row in rows if first_bad is None or row.rate_per_s < first_bad.rate_per_s]
    last_good = below[-1] if below else None
    status: SaturationStatus = "bracketed"
    if first_bad is None or last_good is None:
        status = "above" if last_good else "below"
    return Saturation(
        status=status,
        last_good_per_s=last_good.rate_per_s if last_good else None,
        first_bad_per_s=first_bad.rate_per_s if first_bad else None,
        target_share=target_share,
        doubts=tuple(_doubts(rows, last_good, first_bad)),
    )


def _doubts(
    rows: Sequence[SweepRow], last_good: SweepRow | None, first_bad: SweepRow | None
) -> list[str]:
    found = [
        f"at {row.rate_per_s:.3g} requests/s {row.share.estimate:.0%} of {row.num_requests} kept "
        f"it, which may be {row.share.low:.0%} to {row.share.high:.0%}"
        for row in (last_good, first_bad)
        if row is not None and not row.is_certain
    ]
    again = [
        row.rate_per_s
        for row in rows
        if row.is_good and first_bad is not None and row.rate_per_s > first_bad.rate_per_s
    ]
    return found + [f"it was kept again at {rate:.3g} requests/s" for rate in again]
