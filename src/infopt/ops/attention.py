"""Paged causal attention over a mixed batch of decodes and prefill chunks: the reference.

Cached tokens are read in tiles at fixed positions (multiples of ``TILE`` from the start of the
sequence) and combined with one online-softmax recurrence (arXiv 2205.14135), the same for a decode
row and for a row of a prefill chunk:

    m' = max(m, max(s));  p = exp(s - m');  l' = l exp(m - m') + sum(p);  o' = o exp(m - m') + p V

A tile in which a row sees nothing changes neither ``m`` nor ``l`` nor ``o`` by a bit, so sequences
of different lengths can share tensors: the bits of a row depend on that row's own keys alone.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F

from infopt.ops import cpu, gpu
from infopt.ops.context import ForwardContext, GroupContext, KVPages
from infopt.ops.dispatch import Implementation

TILE = 256
"""Cached tokens per step of the online softmax (rounded up to whole pages)."""

ROW_MULTIPLE = 8
"""Query rows are padded to a multiple of this: one row alone takes another path in BLAS."""

_START = -1e30  # finite, so that exp(_START - _START) is 1 and a fully masked tile is a no-op


def paged_attention(
    q: torch.Tensor,
    pages: KVPages,
    ctx: ForwardContext,
    group: GroupContext,
    scale: float,
    softcap: float | None = None,
) -> torch.Tensor:
    """Attend from every token of the batch to the cached tokens of its sequence.

    Args:
        q: ``(num_tokens, num_heads, head_dim)``.
        pages: Keys and values of this layer, those of this step already written.
        ctx: The batch.
        group: Block tables and window of this layer's KV group.
        scale: Factor on the scores.
        softcap: Scores become ``c * tanh(s / c)``.

    Returns:
        ``(num_tokens, num_heads * head_dim)``.
    """
    out = torch.empty_like(q)
    starts, num_decodes = ctx.query_starts, ctx.num_decodes
    if num_decodes:
        out[:num_decodes] = _attend(
            q[:num_decodes].unsqueeze(1),
            ctx.positions[:num_decodes].unsqueeze(1),
            pages,
            group.block_tables[:num_decodes],
            max(ctx.context_lens[:num_decodes]),
            group.window,
            scale,
            softcap,
        ).squeeze(1)
    for i in range(num_decodes, ctx.num_seqs):
        rows = slice(starts[i], starts[i + 1])
        out[rows] = _attend(
            q[rows].unsqueeze(0),
            ctx.positions[rows].unsqueeze(0),
            pages,
            group.block_tables[i : i + 1],
            ctx.context_lens[i],
            group.window,
            scale,
            softcap,
        ).squeeze(0)
    return out.flatten(1)


def _attend(
    q: torch.Tensor,
    positions: torch.Tensor,
    pages: KVPages,
    block_tables: torch.Tensor,
    context_len: int,
    window: int | None,
    scale: float,
    softcap: float | None,
) -> torch.Tensor:
    """Attend for sequences with equally many queries.

    Args:
        q: ``(num_seqs, num_queries, num_heads, head_dim)``.
        positions: int64 ``(num_seqs, num_queries)``.
        pages: Keys and values of the layer.
        block_tables: int32 ``(num_seqs, >= pages of context_len)``.
        context_len: Longest context among the sequences.
        window: Keys a query sees, itself included.
        scale: Factor on the scores.
        softcap: Soft cap on the scores.

    Returns:
        Same shape as ``q``.
    """
    num_seqs, num_queries, num_heads, head_dim = q.shape
    num_kv_heads, block_size = pages.keys.shape[1:3]
    queries, position = _group_queries(q, positions, num_kv_heads)
    pages_per_tile = -(-TILE // block_size)
    num_pages = -(-context_len // block_size)
    first = 0 if window is None else max(int(positions.min()) - window + 1, 0) // block_size
    first -= first % pages_per_tile  # tiles start at fixed positions
    state = _OnlineSoftmax(queries)
    for page in range(first, num_pages, pages_per_tile):
        table = _tile_table(block_tables, page, page + pages_per_tile)
        keys, values = _gather(pages.keys, table), _gather(pages.values, table)
        scores = torch.matmul(queries, keys.transpose(-1, -2)).float().mul_(scale)
        if softcap is not None:
            scores = torch.tanh(scores.div_(softcap)).mul_(softcap)
        start = page * block_size
        index = torch.arange(start, start + keys.shape[-2], device=q.device)
        hidden = index > position
        if window is not None:
            hidden |= index <= position - window
        state.update(scores.masked_fill_(hidden, float("-inf")), values)
    rows = state.result()[:, :, : num_queries * (num_heads // num_kv_heads)]
    rows = rows.reshape(num_seqs, num_kv_heads, num_queries, -1, head_dim)
    return rows.permute(0, 2, 1, 3, 4).reshape(q.shape).to(q.dtype)


def _group_queries(
    q: torch.Tensor, positions: torch.Tensor, num_kv_heads: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Lay the query heads that share a key head out as rows, padded to ROW_MULTIPLE.

    Returns:
        Queries ``(num_seqs, num_kv_heads, rows, head_dim)`` and the position of each row
        ``(num_seqs, 1, rows, 1)``; padded rows repeat position 0 and are dropped later.
    """
    num_seqs, num_queries, num_heads, head_dim = q.shape
    share = num_heads // num_kv_heads
    rows = q.view(num_seqs, num_queries, num_kv_heads, share, head_dim).transpose(1, 2)
    rows = rows.reshape(num_seqs, num_kv_heads, num_queries * share, head_dim)
    position = positions.repeat_interleave(share, dim=1)
    padding = -rows.shape[2] % ROW_MULTIPLE
    rows = F.pad(rows, (0, 0, 0, padding))
    return rows, F.pad(position, (0, padding)).view(num_seqs, 1, -1, 1)


def _tile_table(block_tables: torch.Tensor, start: int, end: int) -> torch.Tensor:
    """Return columns ``start .. end`` of the table, null pages where it is shorter."""
    table = block_tables[:, start:end]
    return F.pad(table, (0, end - start - table.shape[1]))


def _gather(pages: torch.Tensor, table: torch.Tensor) -> torch.Tensor:
    """Return ``(num_seqs, num_kv_heads, tile, head_dim)`` of the pages in a table."""
    num_seqs, num_pages = table.shape
    _, num_kv_heads, block_size, head_dim = pages.shape
    tile = pages.index_select(0, table.reshape(-1))
    tile = tile.view(num_seqs, num_pages, num_kv_heads, block_size, head_dim)
    return tile.transpose(1, 2).reshape(num_seqs, num_kv_heads, num_pages * block_size, head_dim)


class _OnlineSoftmax:
    """Running maximum, sum and weighted values of the recurrence in the module's docstring."""

    def __init__(self, queries: torch.Tensor) -> None:
        shape = queries.shape[:-1]
        self.maximum = queries.new_full((*shape, 1), _START, dtype=torch.float32)
        self.total = queries.new_zeros((*shape, 1), dtype=torch.float32)
        self.values = queries.new_zeros(queries.shape, dtype=torch.float32)

    def update(self, scores: torch.Tensor, values: torch.Tensor) -> None:
        maximum = torch.maximum(self.maximum, scores.amax(-1, keepdim=True))
        weights = scores.sub_(maximum).exp_()
        shrink = (self.maximum - maximum).exp_()
        self.total.mul_(shrink).add_(weights.sum(-1, keepdim=True))
        weighted = torch.matmul(weights.to(values.dtype), values)
        self.values.mul_(shrink).add_(weighted)
        self.maximum = maximum

    def result(self) -> torch.Tensor:
        return self.values / self.total


IMPLEMENTATIONS = [
    Implementation("cpu", cpu.load_attention, cpu.why_not),
    Implementation("flash-attn", gpu.load_flash_attention, gpu.why_not_flash),
    Implementation("triton", gpu.load_attention, gpu.why_not_attention),
    Implementation("reference", lambda: paged_attention),
]
