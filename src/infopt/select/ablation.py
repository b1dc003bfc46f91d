"""What each technique is worth in a composed configuration: the composition with and without it.

A run that has one winner taken back shows what that winner adds beside all the others. Speeds are
compared in pairs (the composition is the reference of each such run), so their worth has an
interval; a divergence or a derived energy is two numbers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from infopt.results.metrics import metric_of
from infopt.select.energy_order import rests_on_model
from infopt.select.rows import Row, number

EffectVerdict = Literal["better", "worse", "equal", "undecided"]

PAIRED_AXES: Mapping[str, str] = {
    "throughput.output_tokens_per_s": "output_tokens_per_s",
    "slo.goodput_requests_per_s": "goodput_requests_per_s",
    "latency.ttft_s.p50": "ttft_s",
    "latency.tpot_s.p50": "tpot_s",
}
"""Column -> name of its paired ratio."""

PLAIN_AXES = ("energy.j_per_request", "cost.per_request", "quality.kl_mean")
"""Columns that are compared as two numbers."""

EQUAL_SHARE = 1e-6
"""Exact numbers that differ by less are equal."""


@dataclass(frozen=True, slots=True)
class Effect:
    """One axis of one technique.

    Attributes:
        technique: The question whose winner was taken back.
        run: The run without it.
        column: What is compared.
        label: Its name with unit.
        composed: Number with the technique, in displayed units.
        without: Number without it.
        worth: How many times better the composition is for it: above 1 it helps. None for numbers
            that may be 0, such as a divergence.
        low, high: 95 % interval of the worth; None where it was not measured in pairs.
        verdict: ``undecided`` where the interval straddles 1 or there is none.
    """

    technique: str
    run: str
    column: str
    label: str
    composed: float
    without: float
    worth: float | None
    low: float | None
    high: float | None
    verdict: EffectVerdict


def ablation(composed: Row, without: Mapping[str, Row]) -> tuple[Effect, ...]:
    """Return what each technique is worth, on every axis that was measured.

    Args:
        composed: The row of the composition.
        without: Rows that lack one technique, by its name; each was paired with the composition.
    """
    return tuple(
        effect
        for technique, row in without.items()
        for column in (*PAIRED_AXES, *PLAIN_AXES)
        if (effect := _effect(technique, composed, row, column)) is not None
    )


def worth_interval(composed: Row, row: Row, column: str) -> tuple[float, float, float] | None:
    """Return how many times better the composition is than a run paired with it: median, low, high.

    Args:
        composed: The reference of the pairs.
        row: The other run.
        column: One of ``PAIRED_AXES``.
    """
    prefix = f"comparison.{PAIRED_AXES[column]}"
    if row.get(f"{prefix}.reference") not in (composed["slug"], composed["run"]):
        return None
    values = [number(row, f"{prefix}.{key}") for key in ("median", "low", "high")]
    if any(value is None or value <= 0 for value in values):
        return None
    median, low, high = (float(value) for value in values if value is not None)
    if metric_of(column).better == "lower":
        return median, low, high
    return 1 / median, 1 / high, 1 / low


def effects_of(effects: Sequence[Effect], technique: str) -> dict[str, Effect]:
    """Return the axes of one technique by column."""
    return {e.column: e for e in effects if e.technique == technique}


def _effect(technique: str, composed: Row, row: Row, column: str) -> Effect | None:
    first, second = number(composed, column), number(row, column)
    if first is None or second is None:
        return None
    metric = metric_of(column)
    label = metric.axis_label
    if rests_on_model(composed, column):
        label += ", derived"
    worth, low, high, verdict = _worth(composed, row, column, first, second)
    scale = metric.display_scale
    numbers = (first * scale, second * scale)
    return Effect(technique, str(row["run"]), column, label, *numbers, worth, low, high, verdict)


def _worth(
    composed: Row, row: Row, column: str, first: float, second: float
) -> tuple[float | None, float | None, float | None, EffectVerdict]:
    if column in PAIRED_AXES:
        found = worth_interval(composed, row, column)
        if found is None:
            return None, None, None, "undecided"
        verdict = row.get(f"comparison.{PAIRED_AXES[column]}.verdict")
        turned = {"better": "worse", "worse": "better"}  # of the run without it, that is
        return *found, turned.get(str(verdict), "undecided")  # type: ignore[return-value]
    if column == "quality.kl_mean":
        if abs(first - second) <= EQUAL_SHARE:
            return None, None, None, "equal"
        return None, None, None, "worse" if first > second else "better"
    return (second / first if first > 0 else None), None, None, "undecided"
