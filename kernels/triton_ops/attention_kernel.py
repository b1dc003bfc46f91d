"""The kernels of paged attention; :mod:`infopt.kernels.triton_ops.attention` launches them."""

from __future__ import annotations

import triton
import triton.language as tl

from infopt.kernels.triton_ops.attention_old_rows import (
    add_old_values,
    old_bounds,
    old_products,
)
from infopt.kernels.triton_ops.common import round_to

_START = tl.constexpr(-1e30)  # finite: exp2(_START - _START) is 1, a fully masked tile is a no-op


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
def _scores(products, scale, softcap, tokens, inside, position, window, HAS_WINDOW, HAS_SOFTCAP):
    """Return scores in powers of two, minus infinity where a row does not see a token."""
    scores = products * scale
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
    old_data,
    old_halves,
    old_tables,
    old_table_stride,
    old_page_stride,
    old_head_bytes,
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
    BITS: tl.constexpr,
    EXPONENT: tl.constexpr,
    GROUP: tl.constexpr,
    RESIDUAL: tl.constexpr,
):
    """Attend for row block ``program_id(0)``, key head 1, split 2 (SPLIT = 0: all tokens).

    ``out`` is the result, or with splits float32 ``(num_tokens, num_heads, num_splits, head_dim)``
    beside maxima and sums ``(num_tokens, num_heads, num_splits)``. With BITS, each query reads the
    rows below its bound in that form; a tile may hold both.
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
    bound, lowest_bound, highest_bound = old_bounds(position, valid, PAGE_TOKENS, RESIDUAL, BITS)
    old_table = old_tables + sequence.to(tl.int64) * old_table_stride
    for start in range(begin // BLOCK_N * BLOCK_N, end, BLOCK_N):
        tokens = start + tl.arange(0, BLOCK_N)
        inside = (tokens >= lowest) & (tokens < end)
        is_full = inside & (tokens >= lowest_bound)
        is_old = tokens[None, :] < bound[:, None]
        k = _load_tile(
            keys, table, tokens, is_full, columns, kv_head, key_page_stride, head_dim, PAGE_TOKENS
        )
        products = tl.dot(queries, tl.trans(k.to(DOT)), input_precision="ieee")
        if BITS > 0:
            products = old_products(
                products,
                queries,
                is_old,
                old_data,
                old_halves,
                old_table,
                tokens,
                inside,
                columns,
                kv_head,
                old_page_stride,
                old_head_bytes,
                head_dim,
                highest_bound,
                DOT,
                BITS,
                EXPONENT,
                GROUP,
            )
        scores = _scores(
            products,
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
            is_full,
            columns,
            kv_head,
            value_page_stride,
            head_dim,
            PAGE_TOKENS,
        )
        rounded = round_to(weights, values.dtype.element_ty).to(DOT)
        summed = summed * shrink[:, None]
        if BITS > 0:
            summed = add_old_values(
                summed,
                rounded,
                is_old,
                old_data,
                old_halves,
                old_table,
                tokens,
                inside,
                columns,
                kv_head,
                old_page_stride,
                old_head_bytes,
                head_dim,
                highest_bound,
                DOT,
                BITS,
                EXPONENT,
                GROUP,
            )
            rounded = tl.where(is_old, tl.zeros_like(rounded), rounded)
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
