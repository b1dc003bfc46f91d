"""Adds text and bytes to log-probabilities."""

from __future__ import annotations

import dataclasses

from infopt.models.tokenizer import Tokenizer
from infopt.outputs import PositionLogprobs


def with_text(entry: PositionLogprobs, tokenizer: Tokenizer) -> PositionLogprobs:
    """Return the entry with the bytes of every candidate, and those bytes as text.

    Each candidate is decoded on its own: alternatives at one position never depend on each other,
    and a part of a character shows as a replacement mark while its bytes stay exact.
    """
    decorated: PositionLogprobs = {}
    for token_id, logprob in entry.items():
        raw = tokenizer.token_bytes(token_id)
        decorated[token_id] = dataclasses.replace(
            logprob, decoded_token=raw.decode("utf-8", errors="replace"), token_bytes=raw
        )
    return decorated
