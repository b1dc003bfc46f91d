"""Load sweep: how much load a server takes before requests miss their objective.

>>> found = sweep(measure, [1, 2, 4, 8], slo, num_bisections=3)
>>> found.saturation.bracket
(4.0, 4.76)

`infopt.bench.saturation` says what is good, bad and the saturation point.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from infopt.bench.load_result import LoadResult
from infopt.bench.options import check_count, check_positive
from infopt.bench.saturation import Saturation, SweepRow, saturation_of, sweep_row
from infopt.bench.slo import SLO
from infopt.errors import WorkloadError

Measure = Callable[[float], LoadResult]
"""Runs an open loop at a rate (requests/s), on a server that is idle again when it returns."""

FALLING_GOODPUT = 0.95
"""Below this share of the best so far, goodput is said to have fallen."""


@dataclass(frozen=True, slots=True)
class SweepResult:
    """A sweep.

    Attributes:
        rows: The measured rates, rising.
        saturation: What follows from them.
        skipped_per_s: Rates that were not measured because the load was too much before them.
    """

    rows: tuple[SweepRow, ...]
    saturation: Saturation
    skipped_per_s: tuple[float, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """Return plain data."""
        return {
            "rows": [row.to_dict() for row in self.rows],
            "saturation": self.saturation.to_dict(),
            "skipped_per_s": list(self.skipped_per_s),
        }


def sweep(
    measure: Measure,
    rates: Iterable[float],
    slo: SLO,
    *,
    target_share: float = 0.9,
    num_bisections: int = 0,
    on_row: Callable[[SweepRow], None] = lambda _: None,
) -> SweepResult:
    """Measure rising rates until there is no point in more, then narrow the saturation point.

    The rise ends behind the first bad rate at which goodput has fallen or the queue grows. Then
    ``num_bisections`` times the geometric middle of the bracket is measured.

    Args:
        measure: Runs the load at a rate.
        rates: Rates in requests per second, rising.
        slo: The objective.
        target_share: Share of requests that has to be within it, in (0, 1).
        num_bisections: How often the bracket is halved.
        on_row: Told each row as soon as it is there.

    Raises:
        WorkloadError: No rate, one that is not positive, or rates that do not rise.
    """
    rates = check_rates(rates)
    if not 0 < target_share < 1:
        raise WorkloadError(
            f"target_share must be between 0 and 1, got {target_share!r}.",
            field="target_share",
            value=target_share,
        )
    check_count("num_bisections", num_bisections, minimum=0)
    rows: list[SweepRow] = []

    def run(rate: float) -> SweepRow:
        row = sweep_row(rate, measure(rate), slo, target_share)
        on_row(row)
        return row

    for rate in rates:
        best = max((row.goodput_per_s for row in rows), default=0.0)
        rows.append(run(rate))
        if _is_enough(rows[-1], best):
            break
    skipped = tuple(rates[len(rows) :])
    rows = narrow(run, rows, target_share, num_bisections)
    return SweepResult(tuple(rows), saturation_of(rows, target_share), skipped)


def narrow(
    run: Callable[[float], SweepRow],
    rows: Sequence[SweepRow],
    target_share: float,
    num_bisections: int,
) -> list[SweepRow]:
    """Return the rows with the geometric middle of the bracket measured a number of times.

    Args:
        run: Measures and judges a rate.
        rows: Measured rates; nothing is added where they bracket no saturation point.
        target_share: Share of requests that has to be within the objective.
        num_bisections: How often the bracket is halved.
    """
    rows = sorted(rows, key=lambda row: row.rate_per_s)
    for _ in range(num_bisections):
        low, high = saturation_of(rows, target_share).bracket
        if low is None or high is None:
            break
        rows.append(run(math.sqrt(low * high)))
        rows.sort(key=lambda row: row.rate_per_s)
    return rows


def check_rates(rates: Iterable[float]) -> list[float]:
    """Return rates as a list if they are positive and rise.

    Raises:
        WorkloadError: Otherwise.
    """
    found = [check_positive("rates", rate) for rate in rates]
    if not found:
        raise WorkloadError("A sweep needs at least one rate.", field="rates", value=[])
    for before, after in pairwise(found):
        if after <= before:
            raise WorkloadError(
                f"rates must rise, got {after:g} after {before:g}.",
                field="rates",
                value=found,
                remedy="A server that has been overloaded is not the one that has not.",
            )
    return found


def _is_enough(row: SweepRow, best_goodput_per_s: float) -> bool:
    has_fallen = row.goodput_per_s < FALLING_GOODPUT * best_goodput_per_s
    return not row.is_good and (has_fallen or row.queue_grows)
