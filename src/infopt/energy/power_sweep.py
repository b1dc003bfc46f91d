"""A sweep over power caps and clocks: the same work at each, with energy and time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, TypeVar

from infopt.energy.cost import check_positive
from infopt.energy.power_settings import PowerPoint, PowerSettings, guarded

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class PowerSweep:
    """What to try; empty lists try nothing, which is the default.

    Attributes:
        caps_w: Power caps in watts.
        clocks_mhz: Clocks to lock.
    """

    caps_w: tuple[float, ...] = ()
    clocks_mhz: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        """Check the values.

        Raises:
            ConfigError: One is no positive number.
        """
        for name, values in (("caps_w", self.caps_w), ("clocks_mhz", self.clocks_mhz)):
            for value in values:
                check_positive(f"power.{name}", value)

    @property
    def is_asked_for(self) -> bool:
        """Whether the configuration wants any setting changed."""
        return bool(self.caps_w or self.clocks_mhz)

    def points(self) -> list[PowerPoint]:
        """Return the settings to try: as the board is, each cap, each clock."""
        caps = [PowerPoint(cap_w=watts) for watts in self.caps_w]
        return [PowerPoint(), *caps, *(PowerPoint(clock_mhz=mhz) for mhz in self.clocks_mhz)]


@dataclass(frozen=True, slots=True)
class SweptPoint(Generic[T]):
    """What a setting gave.

    Attributes:
        point: The setting.
        result: What the work returned.
    """

    point: PowerPoint
    result: T


def run_sweep(
    sweep: PowerSweep,
    open_settings: Callable[[], PowerSettings],
    state_file: str | Path,
    work: Callable[[PowerPoint], T],
) -> Sequence[SweptPoint[T]]:
    """Run some work at every setting and put the board back.

    Args:
        sweep: What to try. Where it asks for nothing, the board is not even opened.
        open_settings: Opens the board.
        state_file: Keeps what was set before, until it is put back.
        work: Measures one setting; the first, unchanged one is the reference.

    Raises:
        PowerPermissionError: This user may not change settings: known before anything is measured.
        PowerControlError: A setting was not taken, or the board could not be put back.
    """
    if not sweep.is_asked_for:
        return []
    points = sweep.points()
    with guarded(open_settings(), state_file) as guard:
        guard.apply(points[1])  # a refusal comes now and not after the reference was measured
        results = []
        for point in points:
            guard.apply(point)
            results.append(SweptPoint(point, work(point)))
    return results
