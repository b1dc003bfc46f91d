"""Energy of boards that tell their power but not their energy: sampled and integrated.

The label ``power-integral`` and the distance of the samples travel with every reading: what happens
between two samples is not seen.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from infopt.energy.meters import Now, Sync, no_sync
from infopt.energy.reading import EnergyReading, EnergySource
from infopt.errors import MeasurementError


class PowerGauge(Protocol):
    """Tells power at this moment."""

    @property
    def name(self) -> str:
        """Domain."""
        ...

    def read_watts(self) -> float:
        """Return the power in watts."""
        ...


@dataclass(slots=True)
class PowerMeter:
    """Integrates power by the trapezoid rule.

    Attributes:
        gauge: What is sampled.
        interval_s: Distance of the samples.
        missing: Domains that are not in the readings.
        sync: Waits for the device.
        now: Monotonic seconds.
        runs_thread: Whether windows sample by themselves; tests sample by hand.
    """

    gauge: PowerGauge
    interval_s: float = 0.1
    missing: Mapping[str, str] = field(default_factory=dict)
    sync: Sync = no_sync
    now: Now = time.perf_counter
    runs_thread: bool = True

    @property
    def source(self) -> EnergySource:
        """Power, integrated."""
        return "power-integral"

    def start(self) -> PowerWindow:
        """Open a window."""
        return PowerWindow(self)


class PowerWindow:
    """Samples of a window, the first and the last at its edges."""

    def __init__(self, meter: PowerMeter) -> None:
        """Take the first sample and start the thread."""
        self._meter = meter
        self._samples: list[tuple[float, float]] = []
        self._reason: str | None = None
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None
        meter.sync()
        self.sample()
        if meter.runs_thread:
            self._thread = threading.Thread(target=self._run, name="infopt-power", daemon=True)
            self._thread.start()

    def sample(self) -> None:
        """Take one sample."""
        try:
            self._samples.append((self._meter.now(), self._meter.gauge.read_watts()))
        except MeasurementError as error:
            self._reason = str(error)

    def stop(self) -> None:
        """End the thread and take the last sample."""
        self._meter.sync()
        self._ended.set()
        if self._thread is not None:
            self._thread.join()
        self.sample()

    def reading(self, dram_bytes: float | None = None) -> EnergyReading:
        """Return the integral."""
        del dram_bytes
        meter = self._meter
        seconds = self._samples[-1][0] - self._samples[0][0] if self._samples else 0.0
        if self._reason is not None:
            return EnergyReading.none(self._reason, seconds, meter.missing)
        joules = trapezoid(self._samples)
        if joules <= 0:
            reason = f"{meter.gauge.name}: the power was 0 in all samples"
            return EnergyReading.none(reason, seconds, meter.missing)
        return EnergyReading(
            meter.source,
            joules,
            seconds,
            parts={meter.gauge.name: joules},
            missing=meter.missing,
            interval_s=meter.interval_s,
        )

    def _run(self) -> None:
        while not self._ended.wait(self._meter.interval_s):
            self.sample()


def trapezoid(samples: Sequence[tuple[float, float]]) -> float:
    """Return the joules of (seconds, watts) samples joined by straight lines."""
    pairs = itertools.pairwise(samples)
    return sum((t1 - t0) * (w0 + w1) / 2 for (t0, w0), (t1, w1) in pairs)
