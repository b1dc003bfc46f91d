"""Meters: how a window of time becomes joules.

    choice = choose_meter(torch.device("cpu"))
    window = choice.meter.start()
    ...                                  # the work
    window.stop()
    reading = window.reading(dram_bytes=...)

The device is synchronised at both edges. Nothing is subtracted: idle power is measured apart
(`idle_reading`) and printed beside it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from infopt.energy.counters import Counter, Edge, energy_between
from infopt.energy.model import EnergyConstants, modelled_reading
from infopt.energy.reading import EnergyReading, EnergySource, ModelledWork
from infopt.errors import MeasurementError
from infopt.hardware import usable_cores

Sync = Callable[[], object]
Now = Callable[[], float]


def no_sync() -> None:
    """Do nothing: a CPU has finished when the call returns."""


class Window(Protocol):
    """A window that has been opened."""

    def stop(self) -> None:
        """Close it."""
        ...

    def reading(self, dram_bytes: float | None = None) -> EnergyReading:
        """Return its energy, or why there is none; never raises.

        Args:
            dram_bytes: Bytes that were counted in it; modelled energy needs them.
        """
        ...


class EnergyMeter(Protocol):
    """Measures (or models) the energy of windows."""

    @property
    def source(self) -> EnergySource | None:
        """Where its numbers come from; None where it has none."""
        ...

    def start(self) -> Window:
        """Open a window."""
        ...


@dataclass(slots=True)
class CounterMeter:
    """Differences of counters.

    Attributes:
        source: ``nvml``, ``rapl`` or both.
        counters: One per domain.
        missing: Domains without a counter, and why; readings carry it along.
        sync: Waits for the device.
        now: Monotonic seconds.
    """

    source: EnergySource
    counters: Sequence[Counter]
    missing: Mapping[str, str] = field(default_factory=dict)
    sync: Sync = no_sync
    now: Now = time.perf_counter

    def start(self) -> CounterWindow:
        """Open a window."""
        window = CounterWindow(self)
        window.first = window.edges()
        return window


class CounterWindow:
    """Two readings of each counter."""

    def __init__(self, meter: CounterMeter) -> None:
        """Prepare; `CounterMeter.start` takes the first reading."""
        self._meter = meter
        self.first: dict[str, Edge] = {}
        self._last: dict[str, Edge] = {}
        self._reason: str | None = None

    def stop(self) -> None:
        """Take the second reading."""
        self._last = self.edges()

    def edges(self) -> dict[str, Edge]:
        """Read all counters now; what cannot be read leaves the window without energy."""
        self._meter.sync()
        try:
            return {c.name: Edge(self._meter.now(), c.read_uj()) for c in self._meter.counters}
        except MeasurementError as error:
            self._reason = str(error)
            return {}

    def reading(self, dram_bytes: float | None = None) -> EnergyReading:
        """Return the sum over all domains."""
        del dram_bytes  # memory has a counter of its own, or is named as missing
        meter = self._meter
        seconds = _span(self.first, self._last)
        reason = self._reason or (None if self._last else "the window is still open")
        if reason is not None:
            return EnergyReading.none(reason, seconds, meter.missing)
        try:
            parts = {
                c.name: energy_between(c, self.first[c.name], self._last[c.name])
                for c in meter.counters
            }
        except MeasurementError as error:
            return EnergyReading.none(str(error), seconds, meter.missing)
        total = sum(parts.values())
        return EnergyReading(meter.source, total, seconds, parts=parts, missing=meter.missing)


def _span(first: Mapping[str, Edge], last: Mapping[str, Edge]) -> float:
    shared = [name for name in first if name in last]
    return max((last[n].time_s - first[n].time_s for n in shared), default=0.0)


@dataclass(slots=True)
class ModelledMeter:
    """Core-seconds, time and counted bytes times constants: derived, not measured.

    Attributes:
        constants: Of the model.
        num_cores: Cores that are reserved for the process; default is what it may use.
        now: Monotonic seconds.
        cpu_time: CPU seconds of the process so far, all threads.
    """

    constants: EnergyConstants = field(default_factory=EnergyConstants)
    num_cores: int = field(default_factory=usable_cores)
    now: Now = time.perf_counter
    cpu_time: Now = time.process_time

    @property
    def source(self) -> EnergySource:
        """It is modelled."""
        return "modelled"

    def start(self) -> ModelledWindow:
        """Open a window."""
        return ModelledWindow(self)


class ModelledWindow:
    """Time and CPU time between two edges."""

    def __init__(self, meter: ModelledMeter) -> None:
        """Note the first edge."""
        self._meter = meter
        self._first = self._last = (meter.now(), meter.cpu_time())

    def stop(self) -> None:
        """Note the second edge."""
        self._last = (self._meter.now(), self._meter.cpu_time())

    def reading(self, dram_bytes: float | None = None) -> EnergyReading:
        """Return the modelled energy, which needs ``dram_bytes``."""
        seconds, busy_s = (b - a for a, b in zip(self._first, self._last, strict=True))
        if dram_bytes is None:
            return EnergyReading.none("the bytes of this run were not counted", seconds)
        if seconds <= 0:
            return EnergyReading.none("the window has no length", seconds)
        work = ModelledWork(seconds * self._meter.num_cores, busy_s, dram_bytes)
        return modelled_reading(work, seconds, self._meter.constants)


@dataclass(frozen=True, slots=True)
class NoMeter:
    """No energy, and the reason why.

    Attributes:
        reason: Why.
    """

    reason: str

    @property
    def source(self) -> None:
        """There is none."""
        return

    def start(self) -> NoWindow:
        """Open a window that will hold the reason."""
        return NoWindow(self.reason)


@dataclass(frozen=True, slots=True)
class NoWindow:
    """A window without energy.

    Attributes:
        reason: Why.
    """

    reason: str

    def stop(self) -> None:
        """Do nothing."""

    def reading(self, dram_bytes: float | None = None) -> EnergyReading:
        """Return the reason."""
        del dram_bytes
        return EnergyReading.none(self.reason)


def idle_reading(
    meter: EnergyMeter, seconds: float, sleep: Callable[[float], object] = time.sleep
) -> EnergyReading:
    """Return the energy of doing nothing for a while; its ``watts`` are the idle power.

    Args:
        meter: Of the device, which must be idle.
        seconds: How long; counters of GPUs are renewed ten times a second.
        sleep: Waits.
    """
    window = meter.start()
    sleep(seconds)
    window.stop()
    return window.reading(dram_bytes=0.0)
