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

import torch
import triton

from infopt.kernels.triton_ops.attention_blocks import (
    BlockShape,
    RowBlocks,
    block_shape,
    plan_prefill,
)
from infopt.kernels.triton_ops.attention_kernel import attention_kernel, merge_kernel
from infopt.kernels.triton_ops.attention_old_rows import OldRows
from infopt.kernels.triton_ops.common import (
    FLOAT_DTYPES,
    check,
    check_contiguous,
    dot_type,
    power_of_two,
    refuse,
)
from infopt.kernels.triton_ops.rotary import check_pages

__all__ = [
    "MERGE_SPLITS",
    "SPLIT_TOKENS",
    "BlockShape",
    "OldRows",
    "RowBlocks",
    "block_shape",
    "paged_attention",
    "plan_prefill",
]

SPLIT_TOKENS = 256
"""Cached tokens per partial result; a multiple of every tile."""

MAX_HEAD_DIM = 256
MERGE_SPLITS = 16
"""Partial results that are joined at once."""


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
    old: OldRows | None = None,
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
        old: Rows in fewer bits; each query reads those beyond the residual in that form.

    Raises:
        KernelArgumentError: For wrong shapes, types, layouts or devices.
    """
    _check(q, keys, values, block_tables, positions, out, window, softcap)
    if old is not None:
        old.check(keys)
    num_blocks = num_decodes if blocks is None else blocks.sequence.shape[0]
    if num_blocks == 0:
        return
    num_tokens, num_heads, head_dim = q.shape
    num_kv_heads = keys.shape[1]
    share = num_heads // num_kv_heads
    shape = (
        blocks.shape
        if blocks
        else block_shape(q.dtype, head_dim, share, decode=True, old=old is not None)
    )
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
        *_old_arguments(old, block_tables),
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
        BITS=0 if old is None else old.bits,
        EXPONENT=0 if old is None else old.exponent_bits,
        GROUP=0 if old is None else old.group_size,
        RESIDUAL=0 if old is None else old.residual,
        num_warps=shape.num_warps,
        num_stages=shape.num_stages,
    )
    if split_tokens is None:
        return
    first = 0 if blocks is None else int(blocks.token[0])
    last = num_decodes if blocks is None else num_tokens
    _merge(partial, positions, out, slice(first, last), window, split_tokens)


def _old_arguments(old: OldRows | None, unused: torch.Tensor) -> tuple[object, ...]:
    """Return pointers and strides of quantized rows; without any, a tensor that nobody reads."""
    if old is None:
        return unused, unused, unused, 0, 0, 0
    halves = old.data.view(torch.float16)
    strides = (old.tables.stride(0), old.data.stride(0), old.data.shape[2])
    return old.data, halves, old.tables, *strides


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
