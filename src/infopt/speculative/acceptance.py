"""How likely the next guesses are kept: learned from what became of earlier ones.

For the guess at position j of a draft two shares are kept, both decayed, for all outputs together
and for each output on its own: how often the drafter *gave* that many guesses when it was asked,
and how often a guess was *kept* when those before it were. An output that has seen little is judged
like the others (shrinkage): its share is (kept + s * share of all) / (judged + s).

The share kept of position j starts from that of position j - 1, so that lengths which were never
tried, or not for long, are expected to go on like those that were.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from infopt.engine.draft_control import DraftedPass

Floats = NDArray[np.float64]

PRIOR_SHARE = 0.5
"""Share kept before anything was seen: high enough that guessing is tried."""

_PRIOR_PASSES = 2.0
_SHRINK_PASSES = 12.0
_DECAY_ALL = 1 - 1 / 256
_DECAY_ONE = 1 - 1 / 48
_MOST_NEW = 32
"""Runs that are taken in together: decay is too slow for their order to matter."""


@dataclass(slots=True)
class _Share:
    """Successes and trials, decayed."""

    kept: float = 0.0
    judged: float = 0.0

    def add(self, kept: float, judged: float, decay: float) -> None:
        self.kept = self.kept * decay + kept
        self.judged = self.judged * decay + judged

    def towards(self, share: float, strength: float) -> float:
        """Return the share, pulled towards another one by so many trials."""
        return (self.kept + strength * share) / (self.judged + strength)


class _Counts:
    """Successes and trials by position, decayed; taken in when they are asked for."""

    def __init__(self, max_tokens: int) -> None:
        self._successes, self._trials = np.zeros((2, max_tokens))
        self._new: list[tuple[int, int]] = []
        self._shares: list[float] = []

    def add(self, successes: Sequence[int], trials: Sequence[int]) -> None:
        """Take in runs: so many positions from the first were successes, and trials."""
        self._new.extend(zip(successes, trials, strict=True))
        if len(self._new) > _MOST_NEW:
            self._take_in()

    def shares(self, first: float) -> list[float]:
        """Return the share of successes by position, each starting from the one before it."""
        if self._new or not self._shares:
            self._take_in()
            self._shares, share = [], first
            for kept, judged in zip(self._successes.tolist(), self._trials.tolist(), strict=True):
                share = (kept + _PRIOR_PASSES * share) / (judged + _PRIOR_PASSES)
                self._shares.append(share)
        return self._shares

    def _take_in(self) -> None:
        decay = _DECAY_ALL ** len(self._new)
        self._successes *= decay
        self._trials *= decay
        for kept, judged in self._new:
            self._successes[:kept] += 1
            self._trials[:judged] += 1
        self._new.clear()


class _Output:
    """What is known of one output: the first guess, those behind it, and whether there are any."""

    __slots__ = ("first", "given", "later")

    def __init__(self) -> None:
        self.given, self.first, self.later = _Share(), _Share(), _Share()


class Acceptance:
    """Shares of all outputs and of each.

    Args:
        max_tokens: Longest draft.
    """

    def __init__(self, max_tokens: int) -> None:
        """Know nothing."""
        self._max_tokens = max_tokens
        self._kept, self._given = _Counts(max_tokens), _Counts(max_tokens)
        self._outputs: dict[int, _Output] = {}

    @property
    def num_outputs(self) -> int:
        """Outputs that something is remembered of."""
        return len(self._outputs)

    def note_given(
        self, seq_ids: Sequence[int], wanted: Sequence[int], given: Sequence[int]
    ) -> None:
        """Take in how many guesses came back, per output asked."""
        self._given.add(given, wanted)
        for seq_id, count in zip(seq_ids, given, strict=True):
            self._of(seq_id).given.add(count > 0, 1.0, _DECAY_ONE)

    def note_kept(self, drafted: DraftedPass) -> None:
        """Take in what became of the guesses of a pass."""
        kept = drafted.num_accepted
        judged = min(kept + 1, drafted.num_judged)  # nothing behind a wrong one
        self._kept.add([kept], [judged])
        one = self._of(drafted.seq_id)
        one.first.add(kept > 0, judged > 0, _DECAY_ONE)
        one.later.add(max(kept - 1, 0), max(judged - 1, 0), _DECAY_ONE)

    def forget(self, seq_id: int) -> None:
        """Drop an output."""
        self._outputs.pop(seq_id, None)

    def kept_shares(self) -> list[float]:
        """Return, by position, how often a guess is kept when those before it were."""
        return self._kept.shares(PRIOR_SHARE)

    def given_shares(self) -> list[float]:
        """Return, by position, how often a drafter that is asked gives that many guesses."""
        return np.minimum.accumulate(self._given.shares(1.0)).tolist()

    def survival(self, seq_ids: Sequence[int]) -> Floats:
        """Return the probability that the first j guesses of each output are all kept.

        Returns:
            ``(outputs, max_tokens)``, not rising along a row.
        """
        shares = np.asarray(self.kept_shares())
        ones = [self._outputs.get(seq_id, _NOTHING) for seq_id in seq_ids]
        rows = np.empty((len(ones), self._max_tokens))
        counts = np.array([(o.later.kept, o.later.judged) for o in ones]).reshape(-1, 2)
        strength = _SHRINK_PASSES
        rows[:] = (counts[:, :1] + strength * shares) / (counts[:, 1:] + strength)
        rows[:, 0] = [o.first.towards(float(shares[0]), strength) for o in ones]
        return np.cumprod(rows, axis=1, dtype=np.float64)

    def availability(self, seq_ids: Sequence[int]) -> Floats:
        """Return the probability that each output is given j guesses, ``(outputs, max_tokens)``."""
        shares = np.asarray(self.given_shares())
        hits = [
            self._outputs.get(i, _NOTHING).given.towards(float(shares[0]), _SHRINK_PASSES)
            for i in seq_ids
        ]
        return np.array(hits)[:, None] * (shares / max(float(shares[0]), 1e-9))

    def _of(self, seq_id: int) -> _Output:
        return self._outputs.setdefault(seq_id, _Output())


_NOTHING = _Output()
