"""Time as an injected object, so that queueing formulas can be tested without waiting."""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """Source of monotonic time in seconds."""

    def now(self) -> float:
        """Return the current time in seconds; it never goes back."""
        ...

    def sleep(self, seconds: float) -> None:
        """Let ``seconds`` pass (negative means not at all)."""
        ...


class MonotonicClock:
    """The machine's monotonic clock."""

    def now(self) -> float:
        """Return ``time.perf_counter()``."""
        return time.perf_counter()

    def sleep(self, seconds: float) -> None:
        """Sleep for real."""
        if seconds > 0:
            time.sleep(seconds)


class VirtualClock:
    """A clock that moves only when told to.

    Args:
        start_s: Its first reading.
    """

    def __init__(self, start_s: float = 0.0) -> None:
        """Start at ``start_s``."""
        self._now_s = start_s

    def now(self) -> float:
        """Return the virtual time."""
        return self._now_s

    def sleep(self, seconds: float) -> None:
        """Move the virtual time forward."""
        self.advance(seconds)

    def advance(self, seconds: float) -> None:
        """Move the virtual time forward by ``seconds`` (negative means not at all)."""
        self._now_s += max(seconds, 0.0)
