"""How much longer outputs may wait for the guesses of others.

Guesses make a step longer for everybody in it, and bring tokens to those alone whose guesses are
kept. Tokens per second can rise while an output that copies nothing is late, and with it the end of
the batch. So each output has some *room*: the seconds by which it may still be later than without
any guesses. Longer steps take from it, guesses of its own that are kept give back what they saved.
It starts with part of a step, and a small share of the time is added.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

_START_STEPS = 0.25
"""Room of a new output, in steps; time fills it up to here and no further."""
_LEAST_STEPS = -1.0
"""An output that is later than this can still be sped up by guesses of its own."""
_MOST_STEPS = 16
"""What an output saved long ago is no reason to let it wait now."""


class Patience:
    """Room of each output, in seconds.

    Args:
        share: Of the time, by which an output may be late.
    """

    def __init__(self, share: float) -> None:
        """Know no output."""
        self._share = share
        self._room: dict[int, tuple[float, float]] = {}  # seconds, and when they were written down

    def room_s(self, seq_ids: Sequence[int], now_s: float, step_s: float) -> Floats:
        """Return the room of outputs, ``(outputs,)``.

        Args:
            seq_ids: Outputs; unknown ones are new.
            now_s: Time of all steps so far.
            step_s: A step of theirs that only decodes.
        """
        full_s, share = _START_STEPS * step_s, self._share
        out = np.empty(len(seq_ids))
        for place, seq_id in enumerate(seq_ids):
            room_s, since_s = self._room.get(seq_id, (full_s, now_s))
            if room_s < full_s:
                room_s = min(full_s, room_s + share * (now_s - since_s))
            out[place] = room_s
        return out

    def note(self, seq_ids: Sequence[int], room_s: Floats, now_s: float, step_s: float) -> None:
        """Write down what is left of rooms."""
        kept_s = np.clip(room_s, _LEAST_STEPS * step_s, _MOST_STEPS * step_s)
        for seq_id, seconds in zip(seq_ids, kept_s.tolist(), strict=True):
            self._room[seq_id] = (seconds, now_s)

    def forget(self, seq_id: int) -> None:
        """Drop an output."""
        self._room.pop(seq_id, None)
