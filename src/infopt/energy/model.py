"""Modelled energy of a CPU: what a run used, times constants from the literature.

    E = idle W x cores x time  +  busy W x core-seconds  +  pJ per byte x bytes moved

Nothing here is measured but the three quantities, so the result is *derived*: it ranks
configurations that differ much and never counts as a measurement. Every constant has a source and a
range; energies come with both ends, at which all constants are low or high together.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from itertools import product
from typing import Any

from infopt.energy.cost import is_finite
from infopt.energy.reading import EnergyReading, ModelledWork
from infopt.errors import ConfigError, check_known_keys

_SPEC = (
    "Cloud Carbon Footprint coefficients per virtual CPU, from SPECpower results of whole servers"
)


@dataclass(frozen=True, slots=True)
class Constant:
    """A number of the model.

    Attributes:
        value: The middle.
        low: Lower end of its range.
        high: Upper end.
        source: Where it is from.
    """

    value: float
    low: float
    high: float
    source: str

    def __post_init__(self) -> None:
        """Check the order.

        Raises:
            ConfigError: Not ``0 <= low <= value <= high``, or no source.
        """
        numbers = (self.low, self.value, self.high)
        has_source = isinstance(self.source, str) and bool(self.source)
        is_ordered = all(map(is_finite, numbers)) and 0 <= self.low <= self.value <= self.high
        if not (has_source and is_ordered):
            raise ConfigError(
                f"A constant needs 0 <= low <= value <= high and a source, got {self}.",
                field="energy.constants",
                value=numbers,
            )


@dataclass(frozen=True, slots=True)
class EnergyConstants:
    """The constants of the model.

    Attributes:
        idle_w_per_core: Watts of a core that is there and does nothing, its share of the rest of
            the server included.
        busy_w_per_core: Watts that a busy core adds.
        dram_pj_per_byte: Picojoules per byte read from or written to memory.
    """

    idle_w_per_core: Constant = Constant(
        0.74, 0.45, 1.90, f"{_SPEC}: mean of AWS, EPYC Milan, Haswell at rest"
    )
    busy_w_per_core: Constant = Constant(
        2.76, 1.17, 4.09, f"{_SPEC}: full load less rest; mean of AWS, EPYC Rome, Haswell"
    )
    dram_pj_per_byte: Constant = Constant(
        112.0,
        31.0,
        325.0,
        "14 pJ/bit, 3.9 pJ/bit (GDDR5 and HBM2 in O'Connor et al., MICRO 2017; LPDDR4 is near the "
        "former), 2.6 nJ per 64 bit (Horowitz, ISSCC 2014)",
    )

    @classmethod
    def from_dict(cls, values: Mapping[str, Mapping[str, Any]]) -> EnergyConstants:
        """Return the defaults with some constants replaced by one's own.

        Raises:
            ConfigError: An unknown constant, or one without range or source.
        """
        check_known_keys(values, [f.name for f in fields(cls)], "energy.constants")
        given = {}
        for name, entry in values.items():
            check_known_keys(entry, [f.name for f in fields(Constant)], f"energy.constants.{name}")
            missing = [f.name for f in fields(Constant) if f.name not in entry]
            if missing:
                raise ConfigError(
                    f"energy.constants.{name} needs {', '.join(missing)}.",
                    field=f"energy.constants.{name}",
                )
            given[name] = Constant(**entry)
        return cls(**given)

    def corners(self) -> Iterator[tuple[float, float, float]]:
        """Yield every combination of low and high ends."""
        idle, busy, dram = ((c.low, c.high) for c in self._constants())
        yield from product(idle, busy, dram)

    def joules(self, work: ModelledWork, end: str = "value") -> float:
        """Return the energy of some work.

        Args:
            work: What was used.
            end: ``low``, ``value`` or ``high`` of every constant.
        """
        return energy_of(work, *(getattr(c, end) for c in self._constants()))

    def _constants(self) -> tuple[Constant, Constant, Constant]:
        return self.idle_w_per_core, self.busy_w_per_core, self.dram_pj_per_byte


def energy_of(work: ModelledWork, idle_w: float, busy_w: float, pj_per_byte: float) -> float:
    """Return joules for given constants (watts per core, watts per core, pJ per byte)."""
    return (
        idle_w * work.idle_core_s
        + busy_w * work.busy_core_s
        + pj_per_byte * 1e-12 * work.dram_bytes
    )


def modelled_reading(
    work: ModelledWork, seconds: float, constants: EnergyConstants
) -> EnergyReading:
    """Return a window's modelled energy with both ends."""
    idle, busy, dram = constants._constants()
    return EnergyReading(
        "modelled",
        constants.joules(work),
        seconds,
        low=constants.joules(work, "low"),
        high=constants.joules(work, "high"),
        parts={
            "idle": idle.value * work.idle_core_s,
            "cores": busy.value * work.busy_core_s,
            "dram": dram.value * 1e-12 * work.dram_bytes,
        },
        work=work,
    )


def order_survives(
    first: ModelledWork, second: ModelledWork, constants: EnergyConstants | None = None
) -> bool:
    """Tell whether the same one needs less energy wherever in their ranges the constants are.

    The energy is linear in the constants, so its sign over the box follows from the corners.

    Args:
        first: Work of one configuration, per token or per request.
        second: Work of the other, per the same.
        constants: Default: those of the literature.
    """
    constants = constants or EnergyConstants()
    differences = [energy_of(first, *c) - energy_of(second, *c) for c in constants.corners()]
    return all(d > 0 for d in differences) or all(d < 0 for d in differences)
