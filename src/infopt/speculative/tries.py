"""When to look for guesses although they are not expected to pay, and whose."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

_ALLOWANCE_STEPS = 8
"""An allowance that nothing needed grows to the time of this many steps."""
_MOST_PAUSED = 31
"""Steps at most without a look after many in which nothing paid."""
_SHRUNK = 0.75
"""Share of the outputs at the last look below which the next look is not put off."""


class Tries:
    """An allowance of time for tries, and how long ago each output had one.

    Args:
        share: Of all time.

    Attributes:
        left_s: What may be spent now.
        spent_s: What tries took so far, the worth of their tokens taken off.
    """

    def __init__(self, share: float) -> None:
        """Start with nothing to spend."""
        self._share = share
        self._latest: dict[int, int] = {}
        self._num_tries = 0
        self.left_s = self.spent_s = 0.0

    def grow(self, seconds: float, step_s: float) -> None:
        """Add the share of a step's time."""
        self.left_s = min(self.left_s + self._share * seconds, _ALLOWANCE_STEPS * step_s)

    def num_steps_until(self, seconds: float, step_s: float) -> int:
        """Return after how many steps so much may be spent, at most 1000."""
        per_step_s = self._share * step_s
        missing_s = max(seconds - self.left_s, 0.0)
        return math.ceil(min(missing_s / per_step_s, 1000)) if per_step_s else 1000

    def charge(self, seconds: float) -> None:
        """Take what a try took; below 0 where its tokens are worth more."""
        self.spent_s += seconds
        self.left_s -= seconds

    def note(self, seq_ids: Iterable[int]) -> None:
        """Note that outputs have guesses in this step."""
        self._num_tries += 1
        self._latest |= dict.fromkeys(seq_ids, self._num_tries)

    def longest_idle(self, seq_ids: Sequence[int], places: Iterable[int]) -> int:
        """Return the place of the output that had none for longest, the first of equals."""
        return min(places, key=lambda place: self._latest.get(seq_ids[place], -1))

    def forget(self, seq_id: int) -> None:
        """Drop an output."""
        self._latest.pop(seq_id, None)


class Pauses:
    """Puts looks off: the longer nothing has paid, the longer. A look itself takes time."""

    def __init__(self) -> None:
        """Start without a pause."""
        self._num_vain = self._num_left = self._num_running = 0

    def is_over(self, num_running: int) -> bool:
        """Whether to look in this step; asked once per step.

        Args:
            num_running: Outputs in it; with far fewer than at the last look guesses may pay.
        """
        if self._num_left and num_running >= _SHRUNK * self._num_running:
            self._num_left -= 1
            return False
        self._num_running, self._num_left = num_running, 0
        return True

    def look_closer(self) -> None:
        """Look at every step again: something pays, or would have."""
        self._num_vain = self._num_left = 0

    def look_less(self) -> None:
        """Pause after a look that brought nothing, longer each second time."""
        self._num_vain += 1
        self._num_left = min(2 ** (self._num_vain // 2) - 1, _MOST_PAUSED)

    def wait(self, num_steps: int) -> None:
        """Pause for so many steps at least, as far as pauses go."""
        self._num_left = max(self._num_left, min(num_steps, _MOST_PAUSED))

    def output_ended(self) -> None:
        """Shorten a pause: another output may follow, and of few it is soon a large part."""
        self._num_left = min(self._num_left, self._num_running)
