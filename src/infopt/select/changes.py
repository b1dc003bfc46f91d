"""How one number changed between two runs of the same thing, and what that is worth.

Two results folders were measured at different times, so their samples are not pairs. The interval
of a change combines the 95 % intervals of both numbers on the log scale (the MOVER rule of Donner
and Zou for a difference of independent estimates). The gain over the record's own reference, which
was measured in pairs, is compared as well: a machine that became slower as a whole moves both, and
their ratio stays.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from infopt.bench.stats import MIN_PAIRS_FOR_VERDICT, Verdict
from infopt.results.metrics import Better, metric_of
from infopt.select.energy_order import is_derived
from infopt.select.rows import Row, number, text

Kind = Literal["measured", "paired", "exact", "single"]

SPEED_COLUMNS = (
    "throughput.output_tokens_per_s",
    "slo.goodput_requests_per_s",
    "latency.ttft_s.p50",
    "latency.tpot_s.p50",
    "latency.itl_s.p50",
    "latency.e2e_s.p50",
    "energy.j_per_token",
)
"""Numbers with an interval over repeats in every record of the pipeline."""

QUALITY_COLUMNS = ("quality.kl_mean", "quality.top1_agreement")
"""Exact under one protocol, as are perplexities: both runs read the same tokens."""

EXACT_COLUMNS = ("memory.weights_bytes", "memory.kv_bytes_per_token")
SINGLE_COLUMNS = ("memory.peak_rss_bytes", "memory.kv_waste_share")

KL_NOISE_NATS = 1e-4
"""Divergences that differ by less are equal: the order of sums alone moves them so far."""


@dataclass(frozen=True, slots=True)
class Change:
    """One number in both runs.

    Attributes:
        metric: Dotted column, or ``comparison.<name>`` for a gain over the run's own reference.
        label: Name with what it is relative to, for tables.
        kind: ``measured`` (intervals over repeats), ``paired`` (a gain over the reference),
            ``exact`` (noise does not touch it), ``single`` (one number, never decided).
        before: Number in A, in SI units.
        after: Number in B.
        ratio: After / before.
        low: Lower end of its 95 % interval; None without one.
        high: Upper end.
        verdict: ``undecided`` where the interval straddles 1, there is none, or there were fewer
            than ``MIN_PAIRS_FOR_VERDICT`` repeats.
        better: Which direction is better.
        note: Why it is undecided, where that is not the interval; else "".
    """

    metric: str
    label: str
    kind: Kind
    before: float
    after: float
    ratio: float
    low: float | None
    high: float | None
    verdict: Verdict
    better: Better
    note: str = ""

    @property
    def loss(self) -> float:
        """Share by which B is worse than A: 0.1 is 10 % slower; negative where B is better."""
        if self.better == "lower":
            return self.ratio - 1
        return 1 / self.ratio - 1 if self.ratio > 0 else math.inf

    def is_regression(self, tolerance: float) -> bool:
        """Tell whether it is worse for sure, and by more than ``tolerance`` (0.05 is 5 %)."""
        return self.verdict == "worse" and self.loss > tolerance

    def to_dict(self, tolerance: float) -> dict[str, object]:
        """Return plain data; an infinite loss is None."""
        names = ("metric", "label", "kind", "before", "after", "ratio", "low", "high", "verdict")
        loss = self.loss if math.isfinite(self.loss) else None
        return {
            **{name: getattr(self, name) for name in names},
            "loss": loss,
            "is_regression": self.is_regression(tolerance),
            "note": self.note,
        }


def changes_of(before: Row, after: Row, with_quality: bool) -> Iterator[Change]:
    """Yield the change of every number that both runs have.

    Args:
        before: Flat record of A.
        after: Flat record of B, of the same configuration and workload.
        with_quality: Whether both measured quality under one protocol.
    """
    measured = [_measured(before, after, column) for column in SPEED_COLUMNS]
    exact = [*EXACT_COLUMNS, *(_quality_columns(before) if with_quality else ())]
    changes = [
        *measured,
        *(_gain(before, after, name) for name in _compared(before)),
        *(_exact(before, after, column) for column in exact),
        *(_task(before, after, column) for column in _tasks(before) if with_quality),
        *(_single(before, after, column) for column in SINGLE_COLUMNS),
    ]
    yield from (change for change in changes if change is not None)


def ratio_interval(
    before: tuple[float, float, float], after: tuple[float, float, float]
) -> tuple[float, float]:
    """Return the 95 % interval of after / before of two independent estimates.

    Args:
        before: Estimate, low, high; all positive.
        after: The same for the numerator.
    """
    (b, b_low, b_high), (a, a_low, a_high) = (tuple(map(math.log, t)) for t in (before, after))
    below = math.hypot(max(a - a_low, 0.0), max(b_high - b, 0.0))
    above = math.hypot(max(a_high - a, 0.0), max(b - b_low, 0.0))
    return math.exp(a - b - below), math.exp(a - b + above)


def _measured(before: Row, after: Row, column: str) -> Change | None:
    first, second = (_triple(row, f"intervals.{column}", "estimate") for row in (before, after))
    if first is None or second is None:
        return _single(before, after, column)
    if column.startswith("energy.") and (is_derived(before) or is_derived(after)):
        return _single(before, after, column, "derived from constants, not measured")
    counts = [number(row, f"intervals.{column}.count") for row in (before, after)]
    return _with_interval(column, metric_of(column).label, "measured", first, second, counts)


def _gain(before: Row, after: Row, name: str) -> Change | None:
    """Compare the gains over one reference, each measured in pairs."""
    prefix = f"comparison.{name}"
    first, second = (_triple(row, prefix, "median") for row in (before, after))
    reference = text(before, f"{prefix}.reference")
    if first is None or second is None or reference != text(after, f"{prefix}.reference"):
        return None
    counts = [number(row, f"{prefix}.num_pairs") for row in (before, after)]
    label = f"{metric_of(name).label} against {reference}"
    return _with_interval(prefix, label, "paired", first, second, counts)


def _with_interval(
    column: str,
    label: str,
    kind: Kind,
    before: tuple[float, float, float],
    after: tuple[float, float, float],
    counts: list[float | None],
) -> Change:
    low, high = ratio_interval(before, after)
    better = _better(column)
    is_few = any(count is None or count < MIN_PAIRS_FOR_VERDICT for count in counts)
    verdict = "undecided" if is_few else _verdict(low, high, better)
    note = f"fewer than {MIN_PAIRS_FOR_VERDICT} repeats" if is_few else ""
    ratio = after[0] / before[0]
    return Change(column, label, kind, before[0], after[0], ratio, low, high, verdict, better, note)


def _exact(before: Row, after: Row, column: str) -> Change | None:
    values = _both(before, after, column)
    if values is None:
        return None
    first, second = values
    if column == "quality.kl_mean":
        if abs(first - second) < KL_NOISE_NATS:
            second = first
        # Rounding may leave a divergence at or below 0, which has no ratio.
        first, second = (max(v, KL_NOISE_NATS) for v in (first, second))
    better = _better(column)
    if first <= 0:
        return None
    note = "equal" if first == second else ""
    return _plain(
        column, "exact", first, second, _verdict(second / first, second / first, better), note
    )


def _task(before: Row, after: Row, column: str) -> Change | None:
    """Compare two scores: decided where their own intervals do not overlap."""
    values = _both(before, after, column)
    ends = [
        [number(row, f"{column.removesuffix('score')}{end}") for end in ("low", "high")]
        for row in (before, after)
    ]
    if values is None or values[0] <= 0:
        return None
    (_, high), (low, top) = ends
    if high is not None and low is not None and low > high:
        return _plain(column, "exact", *values, "better")
    bottom = ends[0][0]
    if top is not None and bottom is not None and top < bottom:
        return _plain(column, "exact", *values, "worse")
    note = "the intervals of the scores overlap"
    return _plain(column, "exact", *values, "undecided", note)


def _single(
    before: Row, after: Row, column: str, note: str = "one number each, no interval"
) -> Change | None:
    values = _both(before, after, column)
    if values is None or min(values) <= 0:
        return None
    return _plain(column, "single", *values, "undecided", note)


def _plain(
    column: str, kind: Kind, before: float, after: float, verdict: Verdict, note: str = ""
) -> Change:
    label, better = metric_of(column).label, _better(column)
    return Change(
        column, label, kind, before, after, after / before, None, None, verdict, better, note
    )


def _verdict(low: float, high: float, better: Better) -> Verdict:
    if low <= 1 <= high:
        return "undecided"
    return "better" if (low > 1) == (better == "higher") else "worse"


def _better(column: str) -> Better:
    better = metric_of(column.removeprefix("comparison.")).better
    assert better is not None, f"{column} has no direction"
    return better


def _triple(row: Row, prefix: str, estimate: str) -> tuple[float, float, float] | None:
    middle, low, high = (number(row, f"{prefix}.{key}") for key in (estimate, "low", "high"))
    if middle is None or low is None or high is None or min(middle, low, high) <= 0:
        return None
    return middle, low, high


def _both(before: Row, after: Row, column: str) -> tuple[float, float] | None:
    first, second = number(before, column), number(after, column)
    return None if first is None or second is None else (first, second)


def _compared(row: Row) -> list[str]:
    columns = [c for c in row if c.startswith("comparison.") and c.endswith(".median")]
    names = [c.removeprefix("comparison.").removesuffix(".median") for c in columns]
    return [name for name in names if metric_of(name).better is not None]


def _quality_columns(row: Row) -> list[str]:
    perplexities = [c for c in row if c.startswith("quality.perplexity.")]
    return [*QUALITY_COLUMNS, *(c for c in perplexities if metric_of(c).better is not None)]


def _tasks(row: Row) -> list[str]:
    return [c for c in row if c.startswith("quality.tasks.") and c.endswith(".score")]
