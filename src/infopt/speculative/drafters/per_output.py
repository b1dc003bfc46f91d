"""Drafters that look for guesses in the text itself: one index per output, grown as it grows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from infopt.engine.drafting import DraftRequest


class TextIndex(Protocol):
    """Finds how the end of a text went on the last time."""

    def propose(self, token_ids: Sequence[int], max_tokens: int) -> list[int]:
        """Take in what is new in a text that only grows; return at most ``max_tokens`` guesses."""
        ...


class PerOutput:
    """A `infopt.engine.drafting.Drafter` that keeps an index per output.

    Args:
        max_tokens: Most guesses at once.
        make_index: Makes an empty index.
    """

    def __init__(self, max_tokens: int, make_index: Callable[[], TextIndex]) -> None:
        """Start with no output."""
        self._max_tokens, self._make_index = max_tokens, make_index
        self._indices: dict[int, TextIndex] = {}

    @property
    def max_tokens(self) -> int:
        """Most tokens it guesses at once."""
        return self._max_tokens

    @property
    def num_outputs(self) -> int:
        """Outputs that something is remembered of."""
        return len(self._indices)

    def propose(self, requests: Sequence[DraftRequest]) -> list[list[int]]:
        """Return the guesses for each request."""
        return [self._propose(request) for request in requests]

    def forget(self, seq_id: int) -> None:
        """Drop the index of an output."""
        self._indices.pop(seq_id, None)

    def _propose(self, request: DraftRequest) -> list[int]:
        index = self._indices.get(request.seq_id)
        if index is None:
            index = self._indices[request.seq_id] = self._make_index()
        return index.propose(request.token_ids, min(request.max_tokens, self._max_tokens))


def copy_from(token_ids: Sequence[int], start: int, count: int) -> list[int]:
    """Return ``count`` tokens from ``start`` on, as if the text went on by copying itself.

    A text that ends in a loop is continued by the loop, however short it is.

    Args:
        token_ids: The text.
        start: Below its length.
        count: Tokens wanted.
    """
    period = len(token_ids) - start
    return [token_ids[start + i % period] for i in range(count)]
