"""Tokens to vectors: the first step of a decoder."""

from __future__ import annotations

from typing import Protocol

import torch
import torch.nn.functional as F


class Embedding(Protocol):
    """Looks token ids up."""

    num_bytes: int
    """Memory it takes."""

    def __call__(self, token_ids: torch.Tensor) -> torch.Tensor:
        """Return vectors ``(num_tokens, hidden_size)`` for int64 ids ``(num_tokens,)``."""
        ...


class DenseEmbedding:
    """Rows of a float matrix.

    Args:
        weight: ``(vocab_size, hidden_size)`` in the compute type.
    """

    def __init__(self, weight: torch.Tensor) -> None:
        """Keep the matrix."""
        self._weight = weight
        self.num_bytes = weight.nbytes

    def __call__(self, token_ids: torch.Tensor) -> torch.Tensor:
        """Look ids up."""
        return F.embedding(token_ids, self._weight)
