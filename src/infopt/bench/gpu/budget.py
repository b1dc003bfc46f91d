"""A share of the time that is left."""

from __future__ import annotations

import time
from collections.abc import Callable


class Budget:
    """Seconds that a section may take; it asks between two steps whether it should stop.

    Args:
        seconds: Time from now.
        clock: Monotonic seconds.
    """

    def __init__(self, seconds: float, clock: Callable[[], float] = time.monotonic) -> None:
        """Start counting."""
        self._clock, self._end = clock, clock() + seconds

    @property
    def left_s(self) -> float:
        """Seconds left, at least 0."""
        return max(self._end - self._clock(), 0.0)

    @property
    def is_spent(self) -> bool:
        """Whether nothing is left."""
        return self.left_s == 0.0

    def share(self, part: float) -> Budget:
        """Return a budget of a part of what is left."""
        return Budget(self.left_s * part, self._clock)
