"""Counters of energy: what a window's two readings say, wrap-arounds, resets and all.

A counter is a whole number of microjoules that grows. RAPL's wraps around at a range it tells;
NVML's never does, but starts again when the driver is reloaded.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from infopt.energy.errors import CounterResetError, CounterStuckError, CounterUnreadableError

MAX_WATTS = 2000.0
"""No package, memory or accelerator of today draws more; a faster counter is a broken one."""

WRAP_WATTS = 500.0
"""A package that draws this wraps its counter once in ``range / WRAP_WATTS`` seconds; in a longer
window nobody can tell how often it did."""

MUST_ADVANCE_S = 1.0
"""Any idle device uses a microjoule in this time: a counter that stood still is no counter."""


class Counter(Protocol):
    """A counter of one domain."""

    @property
    def name(self) -> str:
        """Domain: ``gpu-0``, ``package-0``, ``dram-0``."""
        ...

    @property
    def wrap_uj(self) -> int | None:
        """Microjoules after which it starts at 0 again; None where it does not."""
        ...

    @property
    def update_s(self) -> float:
        """How often the device renews it."""
        ...

    def read_uj(self) -> int:
        """Return the count.

        Raises:
            CounterUnreadableError: It cannot be read; ``field`` says whether it is ``absent``,
                ``permission`` or ``unsupported``.
        """
        ...


@dataclass(frozen=True, slots=True)
class Edge:
    """A counter's value at one edge of a window.

    Attributes:
        time_s: When, on a monotonic clock.
        count_uj: The count.
    """

    time_s: float
    count_uj: int


def energy_between(counter: Counter, start: Edge, end: Edge) -> float:
    """Return the joules between two readings.

    Raises:
        CounterResetError: It went back and no single wrap-around explains it, or the window is so
            long that it may have wrapped more than once.
        CounterStuckError: It did not advance.
    """
    seconds = end.time_s - start.time_s
    advance = _unwrapped(counter, start, end, seconds)
    if advance == 0:
        raise _stuck(counter, seconds)
    if advance > MAX_WATTS * 1e6 * max(seconds, counter.update_s):
        raise CounterResetError(
            f"{counter.name}: the counter moved by {advance / 1e6:.4g} J in {seconds:.3g} s, more "
            f"than {MAX_WATTS:g} W allow: it was reset.",
            field="reset",
            value=advance,
            remedy="Measure again.",
        )
    return advance / 1e6


def _unwrapped(counter: Counter, start: Edge, end: Edge, seconds: float) -> int:
    advance, wrap = end.count_uj - start.count_uj, counter.wrap_uj
    if wrap is not None and seconds * WRAP_WATTS * 1e6 > wrap:
        raise CounterResetError(
            f"{counter.name}: in {seconds:.4g} s the counter may have wrapped around several times "
            f"(its range is {wrap / 1e6:.4g} J).",
            field="wrap",
            value=seconds,
            remedy="Measure shorter windows and add them up.",
        )
    if advance >= 0:
        return advance
    if wrap is None:
        raise CounterResetError(
            f"{counter.name}: the counter went back from {start.count_uj} to {end.count_uj} uJ.",
            field="reset",
            value=advance,
            remedy="Measure again; the driver was probably reloaded meanwhile.",
        )
    return advance + wrap


def _stuck(counter: Counter, seconds: float) -> CounterStuckError:
    if seconds < counter.update_s:
        text = f"the window of {seconds:.3g} s is shorter than its update interval"
    elif seconds < MUST_ADVANCE_S:
        text = f"counter did not advance in {seconds:.3g} s: the window is too short for it"
    else:
        text = "counter did not advance"
    return CounterStuckError(
        f"{counter.name}: {text}.",
        field="stuck",
        value=seconds,
        remedy=f"It is renewed every {counter.update_s:g} s; measure for longer.",
    )


def unreadable(
    name: str, kind: str, detail: str, remedy: str | None = None
) -> CounterUnreadableError:
    """Return the error of a counter that cannot be read.

    Args:
        name: Domain.
        kind: ``absent``, ``permission`` or ``unsupported``.
        detail: What the system said.
        remedy: What to do about it.
    """
    return CounterUnreadableError(f"{name}: {kind} ({detail}).", field=kind, remedy=remedy)
