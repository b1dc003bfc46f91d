"""Paged causal attention over a mixed batch of decodes and prefill chunks: the reference.

Cached tokens are read in tiles at fixed positions (multiples of ``TILE`` from the start of the
sequence) and combined with one online-softmax recurrence (arXiv 2205.14135), the same for a decode
row and for a row of a prefill chunk:

    m' = max(m, max(s));  p = exp(s - m');  l' = l exp(m - m') + sum(p);  o' = o exp(m - m') + p V

A tile in which a row sees nothing changes neither ``m`` nor ``l`` nor ``o`` by a bit, so sequences
of different lengths can share tensors: the bits of a row depend on that row's own keys alone.

Where old rows are quantized (:mod:`infopt.ops.kv_quantization`), each query reads a row in the form
that the distance to its own row says, so a tile may hold both.
"""

from __future__ import annotations

from dataclasses import replace

import torch
import torch.nn.functional as F

from infopt.ops import cpu, gpu
from infopt.ops.attention_tiles import Tile, tiles_of
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
    rows, lens = group.rows_of(ctx), group.row_lens_of(ctx)
    if num_decodes:
        out[:num_decodes] = _attend(
            q[:num_decodes].unsqueeze(1),
            rows[:num_decodes].unsqueeze(1),
            pages,
            _part(group, slice(num_decodes)),
            max(lens[:num_decodes]),
            scale,
            softcap,
        ).squeeze(1)
    for i in range(num_decodes, ctx.num_seqs):
        tokens = slice(starts[i], starts[i + 1])
        out[tokens] = _attend(
            q[tokens].unsqueeze(0),
            rows[tokens].unsqueeze(0),
            pages,
            _part(group, slice(i, i + 1)),
            lens[i],
            scale,
            softcap,
        ).squeeze(0)
    return out.flatten(1)


def _part(group: GroupContext, sequences: slice) -> GroupContext:
    """Return the tables of some sequences."""
    old = group.quantized
    if old is not None:
        old = replace(old, block_tables=old.block_tables[sequences])
    return replace(group, block_tables=group.block_tables[sequences], quantized=old)


def _attend(
    q: torch.Tensor,
    rows: torch.Tensor,
    pages: KVPages,
    group: GroupContext,
    num_rows: int,
    scale: float,
    softcap: float | None,
) -> torch.Tensor:
    """Attend for sequences with equally many queries.

    Args:
        q: ``(num_seqs, num_queries, num_heads, head_dim)``.
        rows: int64 ``(num_seqs, num_queries)``: row of each query in the KV group.
        pages: Keys and values of the layer.
        group: Tables of these sequences.
        num_rows: Rows of the longest of them.
        scale: Factor on the scores.
        softcap: Soft cap on the scores.

    Returns:
        Same shape as ``q``.
    """
    num_seqs, num_queries, num_heads, head_dim = q.shape
    num_kv_heads, block_size = pages.keys.shape[1:3]
    window = group.window
    queries, row = _group_queries(q, rows, num_kv_heads)
    pages_per_tile = -(-TILE // block_size)
    num_pages = -(-num_rows // block_size)
    first = 0 if window is None else max(int(rows.min()) - window + 1, 0) // block_size
    first -= first % pages_per_tile  # tiles start at fixed rows
    tiles = tiles_of(pages, group.block_tables, group.quantized, row)
    state = _OnlineSoftmax(queries)
    for page in range(first, num_pages, pages_per_tile):
        tile = tiles.read(page, page + pages_per_tile)
        scores = tile.scores(queries).mul_(scale)
        if softcap is not None:
            scores = torch.tanh(scores.div_(softcap)).mul_(softcap)
        start = page * block_size
        index = torch.arange(start, start + scores.shape[-1], device=q.device)
        hidden = index > row
        if window is not None:
            hidden |= index <= row - window
        state.update(scores.masked_fill_(hidden, float("-inf")), tile)
    out = state.result()[:, :, : num_queries * (num_heads // num_kv_heads)]
    out = out.reshape(num_seqs, num_kv_heads, num_queries, -1, head_dim)
    return out.permute(0, 2, 1, 3, 4).reshape(q.shape).to(q.dtype)


def _group_queries(
    q: torch.Tensor, rows: torch.Tensor, num_kv_heads: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Lay the query heads that share a key head out as rows, padded to ROW_MULTIPLE.

    Returns:
        Queries ``(num_seqs, num_kv_heads, rows, head_dim)`` and the row of each in the KV group
        ``(num_seqs, 1, rows, 1)``; padding repeats row 0 and is dropped later.
    """
    num_seqs, num_queries, num_heads, head_dim = q.shape
    share = num_heads // num_kv_heads
    queries = q.view(num_seqs, num_queries, num_kv_heads, share, head_dim).transpose(1, 2)
    queries = queries.reshape(num_seqs, num_kv_heads, num_queries * share, head_dim)
    row = rows.repeat_interleave(share, dim=1)
    padding = -queries.shape[2] % ROW_MULTIPLE
    queries = F.pad(queries, (0, 0, 0, padding))
    return queries, F.pad(row, (0, padding)).view(num_seqs, 1, -1, 1)


class _OnlineSoftmax:
    """Running maximum, sum and weighted values of the recurrence in the module's docstring."""

    def __init__(self, queries: torch.Tensor) -> None:
        shape = queries.shape[:-1]
        self.maximum = queries.new_full((*shape, 1), _START, dtype=torch.float32)
        self.total = queries.new_zeros((*shape, 1), dtype=torch.float32)
        self.values = queries.new_zeros(queries.shape, dtype=torch.float32)

    def update(self, scores: torch.Tensor, tile: Tile) -> None:
        maximum = torch.maximum(self.maximum, scores.amax(-1, keepdim=True))
        weights = scores.sub_(maximum).exp_()
        shrink = (self.maximum - maximum).exp_()
        self.total.mul_(shrink).add_(weights.sum(-1, keepdim=True))
        self.values.mul_(shrink).add_(tile.weighted(weights))
        self.maximum = maximum

    def result(self) -> torch.Tensor:
        return self.values / self.total


IMPLEMENTATIONS = [
    Implementation("cpu", cpu.load_attention, cpu.why_not),
    Implementation("flash-attn", gpu.load_flash_attention, gpu.why_not_flash),
    Implementation("triton", gpu.load_attention, gpu.why_not_attention),
    Implementation("reference", lambda: paged_attention),
]
