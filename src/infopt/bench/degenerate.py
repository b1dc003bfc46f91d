"""Degenerate text: a model that loops makes speculation and caches look far too good."""

from __future__ import annotations

from collections.abc import Sequence

DEGENERATE_SHARE = 0.6
"""Text with a smaller share of distinct 4-grams is reported apart."""


def distinct_ngram_share(token_ids: Sequence[int], n: int = 4) -> float | None:
    """Return distinct n-grams / all n-grams of a text; None if it is shorter than one n-gram.

    Args:
        token_ids: Generated tokens (without the prompt, which may rightly be repeated).
        n: Length of an n-gram.
    """
    num_ngrams = len(token_ids) - n + 1
    if num_ngrams < 1:
        return None
    distinct = {tuple(token_ids[i : i + n]) for i in range(num_ngrams)}
    return len(distinct) / num_ngrams


def is_degenerate(token_ids: Sequence[int]) -> bool:
    """Tell whether under 60 % of the 4-grams are distinct (False for texts too short to tell)."""
    share = distinct_ngram_share(token_ids)
    return share is not None and share < DEGENERATE_SHARE
