"""Attention probabilities, which the engine's kernels never keep: computed again for a few queries.

It costs one more reading of a sequence's keys per layer, in float32, and ``num_queries * num_rows``
numbers per head.
"""

from __future__ import annotations

import torch


def attention_weights(
    queries: torch.Tensor,
    query_rows: torch.Tensor,
    keys: torch.Tensor,
    scale: float,
    softcap: float | None = None,
) -> torch.Tensor:
    """Return the softmax of ``q k`` over the rows that each query sees.

    Args:
        queries: float32 ``(..., num_heads, num_queries, head_dim)``, rotated.
        query_rows: int64 ``(num_queries,)``: each query sees the rows up to this one.
        keys: float32 ``(..., num_kv_heads, num_rows, head_dim)``, rotated.
        scale: Factor of the scores.
        softcap: Bound of the scores, or None.

    Returns:
        ``(..., num_heads, num_queries, num_rows)``.
    """
    *batch, num_heads, num_queries, head_dim = queries.shape
    num_kv_heads, num_rows = keys.shape[-3:-1]
    share = num_heads // num_kv_heads
    grouped = queries.reshape(*batch, num_kv_heads, share * num_queries, head_dim)
    scores = torch.matmul(grouped, keys.transpose(-1, -2)).mul_(scale)
    scores = scores.view(*batch, num_heads, num_queries, num_rows)
    if softcap is not None:
        scores = torch.tanh(scores.div_(softcap)).mul_(softcap)
    index = torch.arange(num_rows, device=keys.device)
    hidden = index > query_rows.to(keys.device)[:, None]
    return scores.masked_fill_(hidden, float("-inf")).softmax(-1)


def mean_over_shared(weights: torch.Tensor, num_kv_heads: int) -> torch.Tensor:
    """Return the mean over the query heads that share a key head.

    Args:
        weights: ``(..., num_heads, num_rows)``.
        num_kv_heads: Key heads.

    Returns:
        ``(..., num_kv_heads, num_rows)``.
    """
    *batch, num_heads, num_rows = weights.shape
    return weights.view(*batch, num_kv_heads, num_heads // num_kv_heads, num_rows).mean(-2)


class AttentionSums:
    """Mean attention that each row got from the queries that saw it.

    A plain sum favours old rows, since more queries saw them; hence the mean. It grows with the
    sequence and is thinned out with its rows.

    Attributes:
        sums: float32 ``(num_layers, num_kv_heads, num_rows)``.
        seen: float32, same shape: queries that saw the row.
    """

    def __init__(self, num_layers: int, num_kv_heads: int, device: torch.device) -> None:
        """Start without rows."""
        self.sums = torch.zeros((num_layers, num_kv_heads, 0), device=device)
        self.seen = self.sums.clone()

    def add(
        self,
        queries: torch.Tensor,
        query_rows: torch.Tensor,
        keys: torch.Tensor,
        scale: float,
        softcap: float | None,
    ) -> None:
        """Add the attention of consecutive tokens.

        Args:
            queries: float32 ``(num_layers, num_heads, num_queries, head_dim)``.
            query_rows: int64 ``(num_queries,)``, ascending.
            keys: float32 ``(num_layers, num_kv_heads, num_rows, head_dim)``: up to the last query's
                own row.
            scale: Factor of the scores.
            softcap: Bound of the scores, or None.
        """
        num_rows = keys.shape[2]
        missing = num_rows - self.sums.shape[2]
        self.sums = torch.nn.functional.pad(self.sums, (0, missing))
        self.seen = torch.nn.functional.pad(self.seen, (0, missing))
        for layer in range(keys.shape[0]):  # one at a time, for memory
            weights = attention_weights(queries[layer], query_rows, keys[layer], scale, softcap)
            self.sums[layer] += mean_over_shared(weights.sum(1), keys.shape[1])
        rows = torch.arange(num_rows, device=keys.device)
        self.seen += (query_rows.to(keys.device)[:, None] >= rows).sum(0)

    def keep(self, rows: torch.Tensor) -> None:
        """Keep some rows, int64 ``(num_layers, num_kv_heads, num_kept)``."""
        self.sums, self.seen = self.sums.gather(2, rows), self.seen.gather(2, rows)

    def mean(self, layer: int) -> torch.Tensor:
        """Return float32 ``(num_kv_heads, num_rows)`` of a layer."""
        return self.sums[layer] / self.seen[layer]
