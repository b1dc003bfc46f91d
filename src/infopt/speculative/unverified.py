"""Guesses that were made and not verified: the tokens that come tell, too, whether they were right.

A guess without probabilities is kept if, and only if, the token in its place equals it, whether it
was verified or not. So what a drafter would have brought is known for the price of asking it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from infopt.engine.draft_control import DraftedPass
from infopt.engine.drafting import Draft, DraftRequest, Guesses


class _Open(NamedTuple):
    """Guesses for the tokens from ``start`` on."""

    start: int
    token_ids: Sequence[int]


class Unverified:
    """Keeps one draft per output until the next look at it."""

    def __init__(self) -> None:
        """Wait for nothing."""
        self._open: dict[int, _Open] = {}

    def __len__(self) -> int:
        """Return the number of drafts that are kept."""
        return len(self._open)

    def note(self, request: DraftRequest, guesses: Guesses) -> None:
        """Keep guesses for the next tokens of an output."""
        if can_be_compared(guesses):
            token_ids = guesses.token_ids if isinstance(guesses, Draft) else guesses
            self._open[request.seq_id] = _Open(len(request.token_ids), token_ids)

    def settle(self, requests: Iterable[DraftRequest]) -> list[DraftedPass]:
        """Return what would have become of guesses, as far as the texts go by now."""
        found = []
        for request in requests if self._open else ():
            draft = self._open.pop(request.seq_id, None)
            if draft is None:
                continue
            known = request.token_ids[draft.start : draft.start + len(draft.token_ids)]
            right = _num_right(draft.token_ids, known)
            judged = min(right + 1, len(known))
            if judged:  # no token came where a step was given up
                found.append(DraftedPass(request.seq_id, judged, right, num_emitted=1))
        return found

    def forget(self, seq_id: int) -> None:
        """Drop an output."""
        self._open.pop(seq_id, None)


def can_be_compared(guesses: Guesses) -> bool:
    """Whether guesses are kept where they equal the token, and only there: none were drawn."""
    return len(guesses) > 0 and not (isinstance(guesses, Draft) and guesses.laws is not None)


def _num_right(guesses: Sequence[int], known: Sequence[int]) -> int:
    for place, (guess, token) in enumerate(zip(guesses, known, strict=False)):
        if guess != token:
            return place
    return min(len(guesses), len(known))
