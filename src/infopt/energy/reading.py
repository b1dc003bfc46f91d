"""`EnergyReading`: the energy of one window, or the reason why there is none."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

EnergySource = Literal["nvml", "rapl", "nvml+rapl", "power-integral", "modelled"]


@dataclass(frozen=True, slots=True)
class ModelledWork:
    """What the modelled energy is a linear function of; see `infopt.energy.model`.

    Attributes:
        idle_core_s: Seconds of the window times the cores that were reserved for it.
        busy_core_s: CPU seconds that were used.
        dram_bytes: Bytes that were counted as moved.
    """

    idle_core_s: float
    busy_core_s: float
    dram_bytes: float

    def __add__(self, other: ModelledWork) -> ModelledWork:
        """Add the work of two windows."""
        return ModelledWork(
            self.idle_core_s + other.idle_core_s,
            self.busy_core_s + other.busy_core_s,
            self.dram_bytes + other.dram_bytes,
        )


@dataclass(frozen=True, slots=True)
class EnergyReading:
    """Energy of a window.

    Attributes:
        source: Where it comes from; None where there is none.
        joules: The energy; None where it could not be had (never 0 for that).
        seconds: Length of the window.
        reason: Why ``joules`` is None.
        low: The modelled energy with every constant at the low end of its range.
        high: The same at the high end.
        parts: Joules by domain (``gpu-0``, ``package-0``, ``dram-0``, ...).
        missing: Domains that are not in ``joules``, and why.
        interval_s: Distance of power samples, where power was integrated.
        work: What a modelled energy was made of.
    """

    source: EnergySource | None
    joules: float | None
    seconds: float
    reason: str | None = None
    low: float | None = None
    high: float | None = None
    parts: Mapping[str, float] = field(default_factory=dict)
    missing: Mapping[str, str] = field(default_factory=dict)
    interval_s: float | None = None
    work: ModelledWork | None = None

    @property
    def is_derived(self) -> bool:
        """Whether it was computed from constants instead of measured."""
        return self.source == "modelled"

    @property
    def watts(self) -> float | None:
        """Mean power; None without energy or time."""
        return self.joules / self.seconds if self.joules is not None and self.seconds > 0 else None

    @classmethod
    def none(
        cls, reason: str, seconds: float = 0.0, missing: Mapping[str, str] | None = None
    ) -> EnergyReading:
        """Return a window without energy."""
        return cls(None, None, seconds, reason, missing=missing or {})


def add_readings(readings: Sequence[EnergyReading]) -> EnergyReading:
    """Return the energy of several windows together; one without energy leaves the sum without.

    Args:
        readings: Of one meter.
    """
    if not readings:
        return EnergyReading.none("nothing was measured")
    seconds = sum(r.seconds for r in readings)
    missing = {name: why for r in readings for name, why in r.missing.items()}
    bad = next((r for r in readings if r.joules is None), None)
    if bad is not None:
        return EnergyReading.none(bad.reason or "no energy", seconds, missing)
    if len({r.source for r in readings}) > 1:
        return EnergyReading.none("the windows have different sources", seconds, missing)
    works = [r.work for r in readings if r.work is not None]
    return EnergyReading(
        readings[0].source,
        sum(r.joules or 0.0 for r in readings),
        seconds,
        low=_sum([r.low for r in readings]),
        high=_sum([r.high for r in readings]),
        parts=_sum_parts(readings),
        missing=missing,
        interval_s=readings[0].interval_s,
        work=sum(works[1:], works[0]) if len(works) == len(readings) else None,
    )


def _sum(values: Sequence[float | None]) -> float | None:
    known = [v for v in values if v is not None]
    return sum(known) if len(known) == len(values) else None


def _sum_parts(readings: Sequence[EnergyReading]) -> dict[str, float]:
    names = dict.fromkeys(name for r in readings for name in r.parts)
    return {name: sum(r.parts.get(name, 0.0) for r in readings) for name in names}
