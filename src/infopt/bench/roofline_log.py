"""A whole step log under the roofline: totals, and the share of time of each regime."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any, Literal

from infopt.bench.roofline import MachinePeaks, Regime, RooflinePoint, roofline_point
from infopt.bench.step_cost import Precision, StepCost, step_cost
from infopt.engine.stats import StepStats
from infopt.models.config import ModelConfig

Phase = Literal["decode", "prefill", "mixed"]


@dataclass(frozen=True, slots=True)
class RooflineSummary:
    """A step log under the roofline.

    Attributes:
        num_steps: Steps counted.
        total: All their work and time together; its bound is the sum of the steps' bounds.
        regime_shares: Share of the time that each regime took (empty if peaks are unknown).
    """

    num_steps: int
    total: RooflinePoint
    regime_shares: dict[Regime, float]

    def to_dict(self) -> dict[str, Any]:
        """Return plain data for a result record."""
        return {
            "num_steps": self.num_steps,
            **self.total.to_dict(),
            "regime_shares": self.regime_shares,
        }


def summarize_roofline(
    steps: Iterable[StepStats],
    config: ModelConfig,
    precision: Precision,
    peaks: MachinePeaks,
    *,
    phase: Phase | None = None,
) -> RooflineSummary | None:
    """Add up a step log; None if it holds no such step.

    Args:
        steps: The engine's ``step_log``.
        config: The model.
        precision: Bytes per stored value.
        peaks: The machine.
        phase: Only steps of this phase.

    Returns:
        The totals. The regime of the total is the one that took the most time, since a sum over
        different regimes has none of its own.
    """
    points = [
        roofline_point(step_cost(s, config, precision), s.duration_s, peaks)
        for s in steps
        if phase is None or phase_of(s) == phase
    ]
    if not points:
        return None
    measured_s = sum(p.measured_s for p in points)
    cost = sum((p.cost for p in points), StepCost())
    seconds: dict[Regime, float] = {}
    for point in points:
        if point.regime is not None:
            seconds[point.regime] = seconds.get(point.regime, 0.0) + point.measured_s
    shares: dict[Regime, float] = {regime: spent / measured_s for regime, spent in seconds.items()}
    bounds = [p.predicted_s for p in points if p.predicted_s is not None]
    total = replace(
        roofline_point(cost, measured_s, peaks),
        predicted_s=sum(bounds) if bounds else None,
        regime=max(shares, key=lambda name: shares[name]) if shares else None,
    )
    return RooflineSummary(len(points), total, shares)


def phase_of(step: StepStats) -> Phase:
    """Tell whether a step computed prompts, new tokens, or both."""
    if not step.num_prefill_tokens:
        return "decode"
    return "mixed" if step.num_decode_tokens else "prefill"
