"""The highest rate at which a configuration keeps an objective, and its goodput there.

>>> found = search_capacity(measure, start_rate=20, slo=slo)
>>> found.rate_per_s, found.goodput_per_s
(38.9, 37.2)

A rate is *sustained* if ``target_share`` of all requests are within every limit and completions
keep up with arrivals: a short run ends before a growing queue has become too long, which is no
capacity. The search multiplies or divides the rate by a factor until it has a sustained rate below
one that is not, then halves the bracket (geometrically). *Goodput* is what was answered within the
limits per second of the whole run, its end included; where no rate is sustained, it is 0.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from infopt.bench.load_result import LoadResult
from infopt.bench.load_sweep import Measure, SweepResult, SweepRow, narrow, saturation_of, sweep_row
from infopt.bench.options import check_count, check_positive
from infopt.bench.slo import SLO
from infopt.errors import WorkloadError

GROWING_WAIT = 0.2
"""Growth of the time to first token above which a rate is not sustained: requests arrive 1.2 times
as fast as they are served."""


@dataclass(frozen=True, slots=True)
class Capacity:
    """What a search found.

    Attributes:
        sweep: Every rate that was tried; ``is_good`` means sustained.
        best: The highest sustained rate (None: no rate is sustained).
    """

    sweep: SweepResult
    best: SweepRow | None

    @property
    def goodput_per_s(self) -> float:
        """Requests per second within the objective at the best rate; 0 without one."""
        return self.best.goodput_per_s if self.best else 0.0

    @property
    def rate_per_s(self) -> float:
        """The best rate, or the lowest that was tried where none is sustained."""
        return self.best.rate_per_s if self.best else self.sweep.rows[0].rate_per_s

    @property
    def first_bad_per_s(self) -> float | None:
        """The lowest rate above it that is not sustained (None: every rate was)."""
        return self.sweep.saturation.first_bad_per_s

    def to_dict(self) -> dict[str, Any]:
        """Return plain data."""
        return {
            "rate_per_s": self.rate_per_s,
            "goodput_per_s": self.goodput_per_s,
            "first_bad_per_s": self.first_bad_per_s,
            "is_sustained": self.best is not None,
        }


def search_capacity(
    measure: Measure,
    start_rate: float,
    slo: SLO,
    *,
    target_share: float = 0.9,
    factor: float = 1.5,
    max_probes: int = 8,
    num_bisections: int = 2,
) -> Capacity:
    """Search the highest sustained rate.

    Args:
        measure: Runs the load at a rate (requests/s), on a system that is idle before and after.
        start_rate: Where to begin; the nearer, the shorter the search.
        slo: The objective.
        target_share: Share of requests that has to be within it, in (0, 1).
        factor: Step of the rate until it is bracketed, above 1.
        max_probes: Rates that are tried for a bracket, at most.
        num_bisections: How often the bracket is halved.

    Raises:
        WorkloadError: An impossible option.
    """
    check_positive("start_rate", start_rate)
    check_count("max_probes", max_probes)
    check_count("num_bisections", num_bisections, minimum=0)
    if not 0 < target_share < 1 or factor <= 1:
        raise WorkloadError(
            f"target_share must be between 0 and 1 and factor above 1, got {target_share!r} and "
            f"{factor!r}.",
            field="target_share",
            value=target_share,
        )

    def run(rate: float) -> SweepRow:
        return judge_rate(rate, measure(rate), slo, target_share)

    rows = narrow(run, _bracket(run, start_rate, factor, max_probes), target_share, num_bisections)
    found = saturation_of(rows, target_share)
    best = next((row for row in rows if row.rate_per_s == found.last_good_per_s), None)
    return Capacity(SweepResult(tuple(rows), found), best)


def relaxed(slo: SLO, factor: float) -> SLO:
    """Return an objective whose limits are ``factor`` times as long."""
    limits = {name: limit * factor for name, limit in slo.limits.items()}
    return SLO(**limits, percentile=slo.percentile)


def _bracket(
    run: Callable[[float], SweepRow], start_rate: float, factor: float, max_probes: int
) -> list[SweepRow]:
    rows = [run(start_rate)]
    step = factor if rows[0].is_good else 1 / factor
    while len(rows) < max_probes and rows[-1].is_good == rows[0].is_good:
        rows.append(run(rows[-1].rate_per_s * step))
    return rows


def judge_rate(rate: float, result: LoadResult, slo: SLO, target_share: float) -> SweepRow:
    """Judge the run at one rate; ``is_good`` is whether the rate is sustained."""
    row = sweep_row(rate, result, slo, target_share)
    grows = waiting_growth(result) > GROWING_WAIT
    return dataclasses.replace(row, is_good=row.is_good and not grows, queue_grows=grows)


def waiting_growth(result: LoadResult) -> float:
    """Return by how much the time to first token grows per second of arrivals (least squares).

    Where requests arrive r times as fast as they are served, it grows by r - 1. Unlike the rate of
    completions, it is not moved by answers that come in batches, nor by the end of a short run.
    """
    points = [(t.scheduled_s, t.ttft_s) for t in result.timings if t.ttft_s is not None]
    arrivals, waits = np.array(points, dtype=np.float64).reshape(len(points), 2).T
    if len(points) < 3 or np.ptp(arrivals) == 0:
        return 0.0
    return float(np.polyfit(arrivals - arrivals[0], waits, 1)[0])
