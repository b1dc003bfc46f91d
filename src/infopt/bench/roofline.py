"""The roofline: how close counted work came to what the machine can do at most.

The bound of work (`infopt.bench.step_cost`) is

    t >= max(bytes / bandwidth, flops / peak)

and the regime says which side of it a measured step is on.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from infopt.bench.step_cost import (
    Precision,
    StepCost,
    engine_precision,
    layer_weights_read,
    step_bytes,
    step_cost,
)
from infopt.errors import MeasurementError

__all__ = [
    "MachinePeaks",
    "Precision",
    "Regime",
    "RooflinePoint",
    "StepCost",
    "engine_precision",
    "layer_weights_read",
    "predicted_seconds",
    "roofline_point",
    "step_bytes",
    "step_cost",
]

Regime = Literal["weight-bandwidth", "kv-bandwidth", "compute", "overhead"]

OVERHEAD_FACTOR = 2.0
"""A step slower than this many times its bound is limited by neither side of it, but by overhead:
launches, Python, unfused passes, threads that wait."""


@dataclass(frozen=True, slots=True)
class MachinePeaks:
    """What the machine can do at most, as measured on it; None is unknown.

    Attributes:
        bytes_per_s: Memory bandwidth.
        flops_per_s: Matrix multiplication in the compute type.
    """

    bytes_per_s: float | None
    flops_per_s: float | None

    @property
    def ridge_flops_per_byte(self) -> float | None:
        """Intensity at which both limits meet."""
        if not self.bytes_per_s or not self.flops_per_s:
            return None
        return self.flops_per_s / self.bytes_per_s


@dataclass(frozen=True, slots=True)
class RooflinePoint:
    """Measured work against the machine's limits; what depends on an unknown peak is None.

    Attributes:
        cost: Counted work.
        measured_s: Time it took.
        predicted_s: The bound.
        mbu: Share of the memory bandwidth that was used.
        mfu: Share of the peak FLOP/s that was used.
        regime: What limited it.
    """

    cost: StepCost
    measured_s: float
    predicted_s: float | None
    mbu: float | None
    mfu: float | None
    regime: Regime | None

    def to_dict(self) -> dict[str, Any]:
        """Return plain data for a result record."""
        return {
            "cost": self.cost.to_dict(),
            "bytes": self.cost.num_bytes,
            "flops": self.cost.flops,
            "measured_s": self.measured_s,
            "predicted_s": self.predicted_s,
            "mbu": self.mbu,
            "mfu": self.mfu,
            "regime": self.regime,
        }


def predicted_seconds(cost: StepCost, peaks: MachinePeaks) -> float | None:
    """Return the least time the work can take; None if a peak is unknown."""
    if not peaks.bytes_per_s or not peaks.flops_per_s:
        return None
    return max(cost.num_bytes / peaks.bytes_per_s, cost.flops / peaks.flops_per_s)


def roofline_point(cost: StepCost, measured_s: float, peaks: MachinePeaks) -> RooflinePoint:
    """Place measured work under the machine's limits.

    Args:
        cost: Counted work.
        measured_s: Time it took, in seconds (> 0).
        peaks: The machine.
    """
    if not measured_s > 0:
        raise MeasurementError(
            f"A roofline needs a positive duration, got {measured_s!r} s.",
            field="measured_s",
            value=measured_s,
        )
    predicted = predicted_seconds(cost, peaks)
    bandwidth, peak = peaks.bytes_per_s, peaks.flops_per_s
    return RooflinePoint(
        cost=cost,
        measured_s=measured_s,
        predicted_s=predicted,
        mbu=cost.num_bytes / (measured_s * bandwidth) if bandwidth else None,
        mfu=cost.flops / (measured_s * peak) if peak else None,
        regime=_regime(cost, measured_s, predicted, peaks),
    )


def _regime(
    cost: StepCost, measured_s: float, predicted_s: float | None, peaks: MachinePeaks
) -> Regime | None:
    if predicted_s is None or not peaks.bytes_per_s:
        return None
    if measured_s > OVERHEAD_FACTOR * predicted_s:
        return "overhead"
    if predicted_s > cost.num_bytes / peaks.bytes_per_s:
        return "compute"
    weights = cost.weight_bytes + cost.embedding_bytes
    return "weight-bandwidth" if weights >= cost.kv_bytes else "kv-bandwidth"
