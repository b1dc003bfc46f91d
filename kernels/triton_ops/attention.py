"""Paged causal attention: decodes split over cached tokens (flash-decoding), prefill in blocks.

The reference is :func:`infopt.ops.attention.paged_attention`; the recurrence is the online softmax
of arXiv 2205.14135, here with powers of two. One kernel serves both kinds of rows. A program takes
up to ``BLOCK_M`` rows: the query heads that share a key head, of one token (decode) or of several
consecutive ones (prefill). It walks over cached tokens in tiles at fixed positions, so the order of
summation of a row depends on the row's position alone.

With ``split_tokens`` every range of so many tokens, counted from the start of the sequence, is a
program of its own and leaves a partial result; :func:`merge_kernel` joins those of a row in fixed
order (arXiv 2311.01282). Without, one program walks the whole context. Decodes and prefill
have the same bits only in the same mode and with the same block sizes: float32 uses no splits and
one shape for both.

Rows of pages that no query of a program may see are never loaded, so null pages and unwritten rows
may hold anything. Rows between the first and the last query of a chunk are loaded and masked: they
must be finite, and they are, since the step has written them.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from infopt.kernels.triton_ops.common import (
    FLOAT_DTYPES,
    check,
    check_contiguous,
    dot_type,
    power_of_two,
    refuse,
    round_to,
)
from infopt.kernels.triton_ops.rotary import check_pages

SPLIT_TOKENS = 256
"""Cached tokens per partial result; a multiple of every tile."""

MAX_HEAD_DIM = 256
MERGE_SPLITS = 16
_LOG2_E = 1.4426950408889634
_START = tl.constexpr(-1e30)  # finite: exp2(_START - _START) is 1, a fully masked tile is a no-op


@dataclass(frozen=True, slots=True)
class BlockShape:
    """Sizes of one compiled variant: rows, cached tokens per tile, warps, pipeline stages."""

    rows: int
    tokens: int
    num_warps: int
    num_stages: int


@dataclass(frozen=True, slots=True)
class RowBlocks:
    """Which rows a program takes: int32 ``(num_blocks,)`` each.

    Attributes:
        sequence: Row of the block table.
        token: First token.
        count: Tokens, at most ``shape.rows // share``.
        shape: Block sizes it was made for.
    """

    sequence: torch.Tensor
    token: torch.Tensor
    count: torch.Tensor
    shape: BlockShape


@triton.jit
def _tanh(x):
    """Tanh without cancellation near 0."""
    square = x * x
    power = tl.exp(-2.0 * tl.abs(x))
    far = tl.where(x < 0, -1.0, 1.0) * (1.0 - power) / (1.0 + power)
    near = x * (1.0 + square * (-1.0 / 3.0 + square * (2.0 / 15.0 - square * (17.0 / 315.0))))
    return tl.where(square < 0.0064, near, far)


@triton.jit
def _load_tile(pages, table, tokens, inside, columns, head, page_stride, head_dim, PAGE_TOKENS):
    """Load keys or values of some tokens, ``(tokens, columns)``; 0 where not inside."""
    page = tl.load(table + tokens // PAGE_TOKENS, mask=inside, other=0).to(tl.int64)
    row = page * page_stride + (head * PAGE_TOKENS + tokens % PAGE_TOKENS) * head_dim
    mask = inside[:, None] & (columns < head_dim)[None, :]
    return tl.load(pages + row[:, None] + columns[None, :], mask=mask, other=0.0)


@triton.jit
def _visible_range(position, valid, window, split, HAS_WINDOW: tl.constexpr, SPLIT: tl.constexpr):
    """Return the oldest token any row sees, and the range of tokens of this program."""
    end = tl.max(position, axis=0) + 1
    lowest = 0
    if HAS_WINDOW:
        oldest = tl.min(tl.where(valid, position, end), axis=0) - window + 1
        lowest = tl.maximum(oldest, 0)
    begin = lowest
    if SPLIT > 0:
        begin = tl.maximum(lowest, split * SPLIT)
        end = tl.minimum(end, (split + 1) * SPLIT)
    return lowest, begin, end


@triton.jit
def _scores(
    queries, keys, scale, softcap, tokens, inside, position, window, HAS_WINDOW, HAS_SOFTCAP
):
    """Return scores in powers of two, minus infinity where a row does not see a token."""
    scores = tl.dot(queries, tl.trans(keys), input_precision="ieee") * scale
    if HAS_SOFTCAP:
        scores = softcap * _tanh(scores / softcap)
    visible = inside[None, :] & (tokens[None, :] <= position[:, None])
    if HAS_WINDOW:
        visible &= tokens[None, :] > position[:, None] - window
    return tl.where(visible, scores * 1.4426950408889634, float("-inf"))


@triton.jit
def _store_rows(
    maximum,
    total,
    summed,
    out,
    partial_max,
    partial_sum,
    row,
    valid,
    columns,
    head_dim,
    split,
    SPLIT,
):
    """Store the rows of a program: results, or with splits what they are merged from."""
    mask = valid[:, None] & (columns < head_dim)[None, :]
    if SPLIT > 0:
        row = row * tl.num_programs(2) + split
        tl.store(partial_max + row, maximum, mask=valid)
        tl.store(partial_sum + row, total, mask=valid)
        tl.store(out + row[:, None] * head_dim + columns[None, :], summed, mask=mask)
    else:
        result = summed / tl.where(total > 0, total, 1.0)[:, None]
        target = out + row[:, None] * head_dim + columns[None, :]
        tl.store(target, round_to(result, out.dtype.element_ty), mask=mask)


@triton.jit
def attention_kernel(
    q,
    keys,
    values,
    tables,
    positions,
    block_sequence,
    block_token,
    block_count,
    out,
    partial_max,
    partial_sum,
    scale,
    softcap,
    head_dim,
    q_stride,
    table_stride,
    key_page_stride,
    value_page_stride,
    window,
    num_heads,
    SHARE: tl.constexpr,
    PAGE_TOKENS: tl.constexpr,
    IS_DECODE: tl.constexpr,
    HAS_WINDOW: tl.constexpr,
    HAS_SOFTCAP: tl.constexpr,
    SPLIT: tl.constexpr,
    DOT: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_D: tl.constexpr,
):
    """Attend for row block ``program_id(0)``, key head 1, split 2 (SPLIT = 0: all tokens).

    ``out`` is the result, or with splits float32 ``(num_tokens, num_heads, num_splits, head_dim)``
    beside maxima and sums ``(num_tokens, num_heads, num_splits)``.
    """
    block = tl.program_id(0)
    kv_head = tl.program_id(1)
    split = tl.program_id(2)
    if IS_DECODE:  # block i is token i of sequence i
        sequence, first_token, count = block, block, 1
    else:
        sequence = tl.load(block_sequence + block)
        first_token = tl.load(block_token + block)
        count = tl.load(block_count + block)
    rows = tl.arange(0, BLOCK_M)
    columns = tl.arange(0, BLOCK_D)
    valid = rows // SHARE < count
    token = (first_token + rows // SHARE).to(tl.int64)
    head = kv_head * SHARE + rows % SHARE
    position = tl.load(positions + token, mask=valid, other=-1).to(tl.int32)
    lowest, begin, end = _visible_range(position, valid, window, split, HAS_WINDOW, SPLIT)
    queries = tl.load(
        q + token[:, None] * q_stride + head[:, None] * head_dim + columns[None, :],
        mask=valid[:, None] & (columns < head_dim)[None, :],
        other=0.0,
    ).to(DOT)
    table = tables + sequence.to(tl.int64) * table_stride
    maximum = tl.full([BLOCK_M], _START, tl.float32)
    total = tl.zeros([BLOCK_M], tl.float32)
    summed = tl.zeros([BLOCK_M, BLOCK_D], tl.float32)
    for start in range(begin // BLOCK_N * BLOCK_N, end, BLOCK_N):
        tokens = start + tl.arange(0, BLOCK_N)
        inside = (tokens >= lowest) & (tokens < end)
        k = _load_tile(
            keys, table, tokens, inside, columns, kv_head, key_page_stride, head_dim, PAGE_TOKENS
        )
        scores = _scores(
            queries,
            k.to(DOT),
            scale,
            softcap,
            tokens,
            inside,
            position,
            window,
            HAS_WINDOW,
            HAS_SOFTCAP,
        )
        higher = tl.maximum(maximum, tl.max(scores, axis=1))
        weights = tl.exp2(scores - higher[:, None])
        shrink = tl.exp2(maximum - higher)
        total = total * shrink + tl.sum(weights, axis=1)
        v = _load_tile(
            values,
            table,
            tokens,
            inside,
            columns,
            kv_head,
            value_page_stride,
            head_dim,
            PAGE_TOKENS,
        )
        rounded = round_to(weights, values.dtype.element_ty).to(DOT)
        summed = summed * shrink[:, None]
        summed = tl.dot(rounded, v.to(DOT), acc=summed, input_precision="ieee")
        maximum = higher
    row = token * num_heads + head
    _store_rows(
        maximum,
        total,
        summed,
        out,
        partial_max,
        partial_sum,
        row,
        valid,
        columns,
        head_dim,
        split,
        SPLIT,
    )


@triton.jit
def merge_kernel(
    partial_out,
    partial_max,
    partial_sum,
    positions,
    out,
    num_splits,
    head_dim,
    window,
    HAS_WINDOW: tl.constexpr,
    SPLIT: tl.constexpr,
    BLOCK_S: tl.constexpr,
    BLOCK_D: tl.constexpr,
):
    """Join the splits that head ``program_id(1)`` of token ``program_id(0)`` can see."""
    token = tl.program_id(0).to(tl.int64)
    row = token * tl.num_programs(1) + tl.program_id(1)
    columns = tl.arange(0, BLOCK_D)
    position = tl.load(positions + token).to(tl.int32)
    first = 0
    if HAS_WINDOW:
        first = tl.maximum(position - window + 1, 0) // SPLIT
    last = position // SPLIT
    maximum = tl.full([], _START, tl.float32)
    total = tl.zeros([], tl.float32)
    summed = tl.zeros([BLOCK_D], tl.float32)
    for start in range(first // BLOCK_S * BLOCK_S, last + 1, BLOCK_S):
        splits = start + tl.arange(0, BLOCK_S)
        inside = (splits >= first) & (splits <= last)
        source = row * num_splits + splits
        maxima = tl.load(partial_max + source, mask=inside, other=_START)
        sums = tl.load(partial_sum + source, mask=inside, other=0.0)
        mask = inside[:, None] & (columns < head_dim)[None, :]
        part = tl.load(
            partial_out + source[:, None] * head_dim + columns[None, :], mask=mask, other=0.0
        )
        higher = tl.maximum(maximum, tl.max(maxima, axis=0))
        weights = tl.exp2(maxima - higher)
        shrink = tl.exp2(maximum - higher)
        total = total * shrink + tl.sum(sums * weights, axis=0)
        summed = summed * shrink + tl.sum(part * weights[:, None], axis=0)
        maximum = higher
    result = round_to(summed / total, out.dtype.element_ty)
    tl.store(out + row * head_dim + columns, result, mask=columns < head_dim)


def block_shape(dtype: torch.dtype, head_dim: int, share: int, *, decode: bool) -> BlockShape:
    """Return the block sizes for a type; float32 has one for decodes and prefill alike.

    Args:
        dtype: Of queries and pages.
        head_dim: Width of a head.
        share: Query heads per key head.
        decode: One token per program.
    """
    wide = power_of_two(head_dim, 16) > 128
    rows = power_of_two(share, 16)
    if dtype == torch.float32:  # products without tensor cores, in registers
        return BlockShape(rows, 16 if wide else 32, 8, 2)
    if decode:
        return BlockShape(rows, 32 if wide else 64, 4, 2)
    return BlockShape(max(rows, 64), 32, 8, 2) if wide else BlockShape(max(rows, 128), 64, 8, 2)


def plan_prefill(
    query_starts: list[int],
    num_decodes: int,
    share: int,
    shape: BlockShape,
    device: torch.device,
) -> RowBlocks:
    """Cut the chunks of all prefilling sequences into row blocks.

    Args:
        query_starts: ``num_seqs + 1`` offsets into the tokens.
        num_decodes: Leading sequences to leave out.
        share: Query heads per key head.
        shape: From :func:`block_shape`.
        device: Where the batch is.
    """
    step = shape.rows // share
    blocks = [
        (sequence, token, min(step, query_starts[sequence + 1] - token))
        for sequence in range(num_decodes, len(query_starts) - 1)
        for token in range(query_starts[sequence], query_starts[sequence + 1], step)
    ]
    table = torch.tensor(blocks, dtype=torch.int32).view(-1, 3).t().contiguous().to(device)
    return RowBlocks(table[0], table[1], table[2], shape)


def paged_attention(
    q: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    block_tables: torch.Tensor,
    positions: torch.Tensor,
    out: torch.Tensor,
    *,
    scale: float,
    softcap: float | None = None,
    window: int | None = None,
    blocks: RowBlocks | None = None,
    num_decodes: int = 0,
    max_context: int = 0,
    split_tokens: int | None = None,
) -> None:
    """Attend for the decodes of a batch, or for the row blocks of its prefill chunks.

    Args:
        q: ``(num_tokens, num_heads, head_dim)``, contiguous.
        keys: ``(num_pages, num_kv_heads, block_size, head_dim)``; pages may be strided.
        values: Same shape and type.
        block_tables: int32 ``(num_seqs, max_pages)``; rows may be strided.
        positions: int64 ``(num_tokens,)``. They must lie in the pages of the tables (not checked:
            that would wait for the device).
        out: Like ``q``; the rows attended for are written.
        scale: Factor on the scores.
        softcap: Scores become ``c * tanh(s / c)``.
        window: Keys a query sees, itself included.
        blocks: Row blocks, or None for decodes: token i of sequence i for i < ``num_decodes``.
        num_decodes: Tokens to attend for when ``blocks`` is None.
        max_context: Longest context, for splits.
        split_tokens: Cached tokens per program, or None for all; a multiple of the tile.

    Raises:
        KernelArgumentError: For wrong shapes, types, layouts or devices.
    """
    _check(q, keys, values, block_tables, positions, out, window, softcap)
    num_blocks = num_decodes if blocks is None else blocks.sequence.shape[0]
    if num_blocks == 0:
        return
    num_tokens, num_heads, head_dim = q.shape
    num_kv_heads = keys.shape[1]
    share = num_heads // num_kv_heads
    shape = blocks.shape if blocks else block_shape(q.dtype, head_dim, share, decode=True)
    num_splits, partial = 1, (out, out, out)
    if split_tokens is not None:
        num_splits = _count_splits(split_tokens, max_context, shape)
        partial = _partials(num_tokens, num_heads, num_splits, head_dim, q.device)
    maps = (positions,) * 3 if blocks is None else (blocks.sequence, blocks.token, blocks.count)
    attention_kernel[(num_blocks, num_kv_heads, num_splits)](
        q,
        keys,
        values,
        block_tables,
        positions,
        *maps,
        *partial,
        scale,
        softcap or 1.0,
        head_dim,
        q.stride(0),
        block_tables.stride(0),
        keys.stride(0),
        values.stride(0),
        window or 0,
        num_heads,
        SHARE=share,
        PAGE_TOKENS=keys.shape[2],
        IS_DECODE=blocks is None,
        HAS_WINDOW=window is not None,
        HAS_SOFTCAP=softcap is not None,
        SPLIT=split_tokens or 0,
        DOT=dot_type(q.dtype),
        BLOCK_M=shape.rows,
        BLOCK_N=shape.tokens,
        BLOCK_D=power_of_two(head_dim, 16),
        num_warps=shape.num_warps,
        num_stages=shape.num_stages,
    )
    if split_tokens is None:
        return
    first = 0 if blocks is None else int(blocks.token[0])
    last = num_decodes if blocks is None else num_tokens
    _merge(partial, positions, out, slice(first, last), window, split_tokens)


def _merge(partial, positions, out, rows: slice, window: int | None, split_tokens: int) -> None:
    part_out, part_max, part_sum = (part[rows] for part in partial)
    num_rows, num_heads, num_splits, head_dim = part_out.shape
    merge_kernel[(num_rows, num_heads)](
        part_out,
        part_max,
        part_sum,
        positions[rows],
        out[rows],
        num_splits,
        head_dim,
        window or 0,
        HAS_WINDOW=window is not None,
        SPLIT=split_tokens,
        BLOCK_S=MERGE_SPLITS,
        BLOCK_D=power_of_two(head_dim),
        num_warps=4,
    )


def _partials(num_tokens, num_heads, num_splits, head_dim, device) -> tuple[torch.Tensor, ...]:
    """Return room for partial values, maxima and sums."""
    shape = (num_tokens, num_heads, num_splits)
    values = torch.empty((*shape, head_dim), dtype=torch.float32, device=device)
    return values, values.new_empty(shape), values.new_empty(shape)


def _count_splits(split_tokens: int, max_context: int, shape: BlockShape) -> int:
    if split_tokens % shape.tokens:
        what = f"must be a multiple of the tile of {shape.tokens} tokens, got {split_tokens}"
        refuse("split_tokens", split_tokens, what)
    if max_context < 1:
        refuse("max_context", max_context, f"must be at least 1 with splits, got {max_context}")
    return triton.cdiv(max_context, split_tokens)


def _check(q, keys, values, block_tables, positions, out, window, softcap) -> None:
    check("q", q, (None, None, None), FLOAT_DTYPES)
    check_contiguous("q", q)
    num_tokens, num_heads, head_dim = q.shape
    check_pages(keys, values, like=q)
    check("keys", keys, (None, None, None, head_dim), q.dtype, like=q)
    if keys.shape[1] == 0 or num_heads % keys.shape[1]:
        what = f"has {num_heads} heads, which cannot share {keys.shape[1]} key heads"
        refuse("q", num_heads, what)
    if head_dim > MAX_HEAD_DIM:
        refuse("q", head_dim, f"has head_dim {head_dim}, the limit is {MAX_HEAD_DIM}")
    check("block_tables", block_tables, (None, None), torch.int32, like=q)
    if block_tables.shape[1] > 1 and block_tables.stride(1) != 1:
        refuse("block_tables", block_tables.stride(), "needs contiguous rows")
    check("positions", positions, (num_tokens,), torch.int64, like=q)
    check_contiguous("positions", positions)
    check("out", out, tuple(q.shape), q.dtype, like=q)
    check_contiguous("out", out)
    if window is not None and window < 1:
        refuse("window", window, f"must be at least 1, got {window}")
    if softcap is not None and softcap <= 0:
        refuse("softcap", softcap, f"must be above 0, got {softcap}")
