"""What a step and a proposal take, learned from the clock.

A step has rows that must be computed and rows of guesses. `StepCosts` keeps the mean time of steps
by both, in classes of size, and fits a curve through them that never falls, so that numbers of
guesses which were never tried have a time, too. Time rises the faster the more there is to compute
(it is flat as long as reading weights limits), so between two classes it lies below the line
between them and above the lines through the neighbours on either side: that is what is expected
of a number that was not tried lately, which makes it worth one try where it might be the best.
Behind the last class the line that leads to it goes on. Where no step had guesses yet, steps with
as many rows of another kind stand for them.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

_MEMORY = 24
"""Steps that a mean reaches back, about."""
_STALE_STEPS = 1000
"""Steps after which a time of guesses is forgotten if it was not seen again."""
_LAST_STAYS = 8
"""Times longer that the last one seen is remembered: with nothing known, too many are tried."""
_TABLE_STEPS = 16
"""Steps for which a curve is not drawn anew, unless a class was seen for the first time."""
_FIT_STEPS = 8
"""Proposals after which their times are computed anew."""
_CLIP = 2.0
"""A step counts at most this many times as long as those before it: pauses are not its size."""


@dataclass(slots=True)
class _Mean:
    """Decayed mean of size and seconds; the first few take the shortest."""

    size: float = 0.0
    seconds: float = 0.0
    count: int = 0
    latest: int = 0

    def add(self, size: float, seconds: float, now: int) -> None:
        self.count, self.latest = self.count + 1, now
        if self.count <= 3:  # the first steps of a size are slow: code and caches are cold
            seconds = min(seconds, self.seconds) if self.count > 1 else seconds
            self.size += (size - self.size) / self.count
            self.seconds = seconds
            return
        if self.seconds:
            seconds = min(max(seconds, self.seconds / _CLIP), self.seconds * _CLIP)
        weight = 1 / min(self.count, _MEMORY)
        self.size += (size - self.size) * weight
        self.seconds += (seconds - self.seconds) * weight


@dataclass(frozen=True, slots=True)
class _Table:
    """Seconds by number of guesses, and the step until which they are good enough."""

    seconds: Floats
    until: int


@functools.lru_cache(maxsize=4096)
def size_class(size: int) -> int:
    """Return the class of a number of rows: its own up to 8, then four to an octave."""
    return size if size <= 8 else 8 + math.ceil(4 * math.log2(size / 8))


class StepCosts:
    """Seconds of a step by its rows and guesses."""

    def __init__(self) -> None:
        """Know nothing."""
        self._plain: dict[int, _Mean] = {}
        self._drafted: dict[int, dict[int, _Mean]] = {}
        self._tables: dict[int, _Table] = {}
        self._num_steps = 0

    def add(self, num_rows: int, num_guesses: int, seconds: float) -> None:
        """Take in a finished step."""
        row_class, self._num_steps = size_class(num_rows), self._num_steps + 1
        if num_guesses:
            means = self._drafted.setdefault(row_class, {})
            mean = means.setdefault(size_class(num_guesses), _Mean())
            mean.add(num_guesses, seconds, self._num_steps)
        else:
            mean = self._plain.setdefault(row_class, _Mean())
            mean.add(num_rows, seconds, self._num_steps)
        if mean.count <= 3:  # news
            self._tables.clear()

    def num_plain(self, num_rows: int) -> int:
        """Return how many steps without guesses had about so many rows."""
        mean = self._plain.get(size_class(num_rows))
        return mean.count if mean else 0

    def most_guesses(self, num_rows: int) -> float:
        """Return the most guesses that a step with about so many rows had lately."""
        means = self._drafted.get(size_class(num_rows), {}).values()
        return max((mean.size for mean in means), default=0.0)

    def plain_s(self, num_rows: float) -> float:
        """Return the seconds of a step without guesses (0 before the first)."""
        mean = self._plain.get(size_class(round(num_rows)))
        if mean is not None and mean.size == num_rows:
            return mean.seconds
        return float(self._plain_line(np.array([float(num_rows)]))[0])

    def table(self, num_rows: int, most: int) -> Floats:
        """Return the seconds of steps with 0, 1, 2, ... and ``most`` guesses, or more of them."""
        key = size_class(num_rows)
        known = self._tables.get(key)
        if known is None or known.until < self._num_steps or len(known.seconds) <= most:
            self._drop_stale()
            seconds = self._curve(num_rows, np.arange(max(most, 15) + 1.0))
            known = self._tables[key] = _Table(seconds, self._num_steps + _TABLE_STEPS)
        return known.seconds

    def _curve(self, num_rows: int, num_guesses: Floats) -> Floats:
        """Return the seconds of steps with ``num_rows`` rows and each number of guesses."""
        start_s = self.plain_s(num_rows)
        row_class = self._nearest_class(num_rows)
        if row_class is None:
            return np.maximum(start_s, self._plain_line(num_rows + num_guesses))
        means = self._drafted[row_class].values()
        base_s = self.plain_s(self._class_rows(row_class))
        points = sorted((m.size, m.seconds - base_s, m.count) for m in means)
        sizes = np.array([0.0, *(p[0] for p in points)])
        extra = _rising([0.0, *(p[1] for p in points)], [4.0, *(float(p[2]) for p in points)])
        curve = _convex_curve(num_guesses, sizes, np.maximum(extra - extra[0], 0.0))
        return start_s + curve

    def describe(self) -> list[dict[str, float]]:
        """Return the means as plain data: rows, guesses, seconds, steps."""
        out = [
            {"rows": m.size, "guesses": 0.0, "seconds": m.seconds, "steps": m.count}
            for m in self._plain.values()
        ]
        for row_class, means in self._drafted.items():
            rows = self._class_rows(row_class)
            out += [
                {"rows": rows, "guesses": m.size, "seconds": m.seconds, "steps": m.count}
                for m in means.values()
            ]
        return sorted(out, key=lambda point: (point["rows"], point["guesses"]))

    def _nearest_class(self, num_rows: int) -> int | None:
        """Return the class of rows, or the nearest one whose steps had guesses lately."""
        wanted = size_class(num_rows)
        return min(self._drafted, key=lambda c: (abs(c - wanted), c), default=None)

    def _drop_stale(self) -> None:
        oldest = self._num_steps - _STALE_STEPS
        oldest_last = self._num_steps - _LAST_STAYS * _STALE_STEPS
        for row_class, means in list(self._drafted.items()):
            last = max(means, key=lambda c: means[c].latest)
            for guess_class, mean in list(means.items()):
                if mean.latest < (oldest_last if guess_class == last else oldest):
                    del means[guess_class]
            if not means:
                del self._drafted[row_class]

    def _class_rows(self, row_class: int) -> float:
        mean = self._plain.get(row_class)
        if mean is not None:
            return mean.size
        return float(row_class if row_class <= 8 else 8 * 2 ** ((row_class - 8) / 4))

    def _plain_line(self, sizes: Floats) -> Floats:
        points = sorted((m.size, m.seconds, m.count) for m in self._plain.values())
        if not points:
            return np.zeros_like(sizes)
        x = np.array([p[0] for p in points])
        y = _rising([p[1] for p in points], [float(p[2]) for p in points])
        return _line(sizes, x, y)


class DraftCosts:
    """Seconds of a proposal: so much per output asked, and so much per position of the longest."""

    _DECAY = 0.97

    def __init__(self) -> None:
        """Know nothing; proposals are free until one was made."""
        self._by_output = self._by_both = self._by_position = 0.0  # sums of squares
        self._of_output = self._of_position = 0.0
        self._count = 0
        self.per_output_s = self.per_position_s = 0.0

    def add(self, num_asked: int, longest: int, seconds: float) -> None:
        """Take in a proposal."""
        self._count += 1
        expected_s = self.seconds(num_asked, longest)
        if self._count > 3 and expected_s:  # reading a prompt is no cost of the next guess
            seconds = min(seconds, 2 * _CLIP * expected_s)
        decay = self._DECAY
        self._by_output = decay * self._by_output + num_asked**2
        self._by_both = decay * self._by_both + num_asked * longest
        self._by_position = decay * self._by_position + longest**2
        self._of_output = decay * self._of_output + num_asked * seconds
        self._of_position = decay * self._of_position + longest * seconds
        if self._count <= _FIT_STEPS or self._count % _FIT_STEPS == 0:
            self._fit()

    def seconds(self, num_asked: Any, longest: Any) -> Any:
        """Return the seconds of proposals, numbers or arrays of them."""
        return self.per_output_s * num_asked + self.per_position_s * longest

    def _fit(self) -> None:
        """Solve the normal equations of both parts; a part below 0 is left out."""
        ridge = 1e-6 * (self._by_output + self._by_position)
        outputs, positions = self._by_output + ridge, self._by_position + ridge
        scale = outputs * positions - self._by_both**2
        per_output = (self._of_output * positions - self._by_both * self._of_position) / scale
        per_position = (self._of_position * outputs - self._by_both * self._of_output) / scale
        if per_position < 0:
            per_output, per_position = self._of_output / outputs, 0.0
        elif per_output < 0:
            per_output, per_position = 0.0, self._of_position / positions
        self.per_output_s, self.per_position_s = per_output, per_position


def _line(sizes: Floats, x: Floats, y: Floats) -> Floats:
    """Return values between points; beyond the last one the line goes on."""
    out = np.interp(sizes, x, y)
    if len(x) > 1:
        slope = (y[-1] - y[-2]) / (x[-1] - x[-2])
        out = np.where(sizes > x[-1], y[-1] + slope * (sizes - x[-1]), out)
    return out


def _convex_curve(sizes: Floats, x: Floats, y: Floats) -> Floats:
    """Return values at the points and, between them, the least that a convex curve can have."""
    slopes = np.diff(y) / np.diff(x)
    between = np.clip(np.searchsorted(x, sizes, side="right") - 1, 0, len(slopes) - 1)
    left = np.concatenate([[0.0], slopes])[between]  # slope before the interval
    right = np.concatenate([slopes, slopes[-1:]])[between + 1]  # and behind it
    from_left = y[between] + left * (sizes - x[between])
    from_right = y[between + 1] - right * (x[between + 1] - sizes)
    least = np.maximum(np.maximum(from_left, from_right), y[between])
    line = _line(sizes, x, y)
    is_last = between == len(slopes) - 1
    least = np.where(is_last & (sizes < x[-1]), np.maximum(from_left, y[between]), least)
    near = np.abs(sizes[:, None] - x).min(axis=1) <= np.maximum(0.5, 0.1 * sizes)
    return np.where(near | (sizes >= x[-1]), line, np.minimum(least, line))


def _rising(values: list[float], weights: list[float]) -> Floats:
    """Return the nearest values that never fall (least squares, by pooling neighbours)."""
    pools: list[tuple[float, float, int]] = []  # value, weight, number of values
    for pool in zip(values, weights, [1] * len(values), strict=True):
        pools.append(pool)
        while len(pools) > 1 and pools[-2][0] > pools[-1][0]:
            pools.append(_pooled(pools.pop(), pools.pop()))
    return np.array([value for value, _, count in pools for _ in range(count)])


def _pooled(
    one: tuple[float, float, int], other: tuple[float, float, int]
) -> tuple[float, float, int]:
    weight = one[1] + other[1]
    return (one[0] * one[1] + other[0] * other[1]) / weight, weight, one[2] + other[2]
