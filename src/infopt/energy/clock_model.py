"""How time and power follow the clock, and the clock at which a piece of work takes least energy.

    t(f) = t0 + c / f          memory does not care for the clock, computing does
    P(f) = P0 + a f^3          leakage and idle parts, and switching at a voltage that grows with f
    E(f) = P(f) t(f)

A slow clock pays P0 for longer, a fast one pays f^3: the optimum lies in between.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from infopt.errors import MeasurementError


@dataclass(frozen=True, slots=True)
class ClockPoint:
    """A measured setting.

    Attributes:
        mhz: Clock.
        seconds: Time of the work.
        joules: Its energy.
    """

    mhz: float
    seconds: float
    joules: float


@dataclass(frozen=True, slots=True)
class ClockModel:
    """The fitted curves.

    Attributes:
        t0_s: Time that does not depend on the clock.
        c: Megahertz-seconds: clock cycles of the work, in millions.
        p0_w: Power that does not depend on the clock.
        a: Watts per cubic megahertz.
    """

    t0_s: float
    c: float
    p0_w: float
    a: float

    def seconds(self, mhz: float) -> float:
        """Return the time at a clock."""
        return self.t0_s + self.c / mhz

    def watts(self, mhz: float) -> float:
        """Return the power at a clock."""
        return self.p0_w + self.a * mhz**3

    def joules(self, mhz: float) -> float:
        """Return the energy at a clock."""
        return self.watts(mhz) * self.seconds(mhz)

    def best_clock(self, low_mhz: float, high_mhz: float) -> float:
        """Return the clock of least energy within a range.

        The slope of E(f) is ``3 a t0 f^2 + 2 a c f - P0 c / f^2``, which grows with f: it has one
        zero, or the optimum is at an end.
        """
        low, high = low_mhz, high_mhz
        if self._slope(low) >= 0:
            return low
        if self._slope(high) <= 0:
            return high
        for _ in range(100):
            middle = (low + high) / 2
            low, high = (middle, high) if self._slope(middle) < 0 else (low, middle)
        return (low + high) / 2

    def _slope(self, mhz: float) -> float:
        rising = 3 * self.a * self.t0_s * mhz**2 + 2 * self.a * self.c * mhz
        return rising - self.p0_w * self.c / mhz**2


def fit_clock_model(points: Sequence[ClockPoint]) -> ClockModel:
    """Fit both curves by least squares.

    Args:
        points: At three clocks or more.

    Raises:
        MeasurementError: Too few clocks, or curves that do not have this shape (a negative part).
    """
    clocks = np.array([p.mhz for p in points], dtype=np.float64)
    if len(set(clocks.tolist())) < 3:
        raise MeasurementError(
            f"A curve over the clock needs three clocks, got {len(set(clocks.tolist()))}.",
            field="power.clocks_mhz",
            value=len(points),
            remedy="Give more clocks.",
        )
    seconds = np.array([p.seconds for p in points])
    watts = np.array([p.joules / p.seconds for p in points])
    t0, c = _line(1 / clocks, seconds)
    p0, a = _line(clocks**3, watts)
    model = ClockModel(t0, c, p0, a)
    if min(t0, c, p0, a) < 0:
        raise MeasurementError(
            f"Time and power do not follow the clock in the way of the model: {model}.",
            field="power.clocks_mhz",
            value=[t0, c, p0, a],
            remedy="Look at the points: a limit other than the clock may have been reached.",
        )
    return model


def _line(x: np.ndarray, y: np.ndarray) -> tuple[float, float]:
    """Return intercept and slope of the line through points."""
    scale = float(np.abs(x).max())  # cubes of megahertz and their inverses differ by 1e18
    rows = np.stack([np.ones_like(x), x / scale], axis=1)
    intercept, slope = np.linalg.lstsq(rows, y, rcond=None)[0]
    return float(intercept), float(slope / scale)
