"""Which rows stay."""

from __future__ import annotations

from collections.abc import Sequence

import torch


def select_rows(scores: torch.Tensor, num_kept: int) -> torch.Tensor:
    """Return the rows with the highest scores, in their order; ties go to the lower row.

    Args:
        scores: float32 ``(num_kv_heads, num_rows)``.
        num_kept: How many stay, at most ``num_rows``.

    Returns:
        int64 ``(num_kv_heads, num_kept)``, ascending.
    """
    order = torch.sort(scores, dim=-1, descending=True, stable=True).indices
    return order[:, :num_kept].sort(-1).values


def protect(
    scores: torch.Tensor, positions: torch.Tensor, spans: Sequence[tuple[int, int]]
) -> torch.Tensor:
    """Return scores with those of protected tokens above all others.

    Args:
        scores: float32 ``(num_kv_heads, num_rows)``.
        positions: int64, same shape: true positions.
        spans: ``start .. end`` of protected positions.
    """
    for start, end in spans:
        inside = (positions >= start) & (positions < end)
        scores = scores.masked_fill(inside, float("inf"))
    return scores
