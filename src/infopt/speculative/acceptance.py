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
        self._kept = [_Share() for _ in range(max_tokens)]
        self._given = [_Share() for _ in range(max_tokens)]
        self._outputs: dict[int, _Output] = {}

    @property
    def num_outputs(self) -> int:
        """Outputs that something is remembered of."""
        return len(self._outputs)

    def note_given(self, seq_id: int, wanted: int, given: int) -> None:
        """Take in how many guesses came back."""
        for position in range(wanted):
            self._given[position].add(given > position, 1.0, _DECAY_ALL)
        self._of(seq_id).given.add(given > 0, 1.0, _DECAY_ONE)

    def note_kept(self, drafted: DraftedPass) -> None:
        """Take in what became of the guesses of a pass."""
        judged = min(drafted.num_accepted + 1, drafted.num_judged)  # nothing behind a wrong one
        for position, share in enumerate(self._kept):
            share.add(position < drafted.num_accepted, position < judged, _DECAY_ALL)
        one = self._of(drafted.seq_id)
        one.first.add(drafted.num_accepted > 0, judged > 0, _DECAY_ONE)
        one.later.add(max(drafted.num_accepted - 1, 0), max(judged - 1, 0), _DECAY_ONE)

    def forget(self, seq_id: int) -> None:
        """Drop an output."""
        self._outputs.pop(seq_id, None)

    def kept_shares(self) -> list[float]:
        """Return, by position, how often a guess is kept when those before it were."""
        shares, share = [], PRIOR_SHARE
        for position in self._kept:
            share = position.towards(share, _PRIOR_PASSES)
            shares.append(share)
        return shares

    def given_shares(self) -> list[float]:
        """Return, by position, how often a drafter that is asked gives that many guesses."""
        shares, share = [], 1.0
        for position in self._given:
            share = min(position.towards(share, _PRIOR_PASSES), share)
            shares.append(share)
        return shares

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
