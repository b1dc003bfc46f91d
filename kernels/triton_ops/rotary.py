"""Splits packed q, k, v; norms and rotates q and k; writes k and v into their pages: one pass.

The reference is :func:`infopt.ops.rotary.rotary_and_write` (rotate-half form, arXiv 2104.09864).
A program takes a few heads of one token as two tiles of half heads. Whether a head is a query, a
key or a value decides what is stored where, by masks, so no warp diverges. Computed in float32 and
rounded once.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from infopt.kernels.triton_ops.common import (
    FLOAT_DTYPES,
    check,
    check_contiguous,
    check_rows_contiguous,
    power_of_two,
    refuse,
    round_to,
)

BLOCK_HEADS = 8
"""Heads per program."""


@triton.jit
def _head_norm(a, b, weight, columns, inside, half, eps):
    """Norm heads given as halves; ``weight`` is float32 ``(2 * half,)``."""
    mean_square = (tl.sum(a * a, axis=1) + tl.sum(b * b, axis=1)) / (2 * half)
    factor = (1.0 / tl.sqrt(mean_square + eps))[:, None]
    first = tl.load(weight + columns, mask=inside, other=0.0)[None, :]
    second = tl.load(weight + half + columns, mask=inside, other=0.0)[None, :]
    return a * factor * first, b * factor * second


@triton.jit
def _store_halves(target, a, b, half, mask):
    tl.store(target, round_to(a, target.dtype.element_ty), mask=mask)
    tl.store(target + half, round_to(b, target.dtype.element_ty), mask=mask)


@triton.jit
def rotary_and_write_kernel(
    qkv,
    cos,
    sin,
    keys,
    values,
    slots,
    query_weight,
    key_weight,
    queries,
    num_heads,
    num_kv_heads,
    half,
    eps,
    qkv_stride,
    cos_stride,
    sin_stride,
    key_page_stride,
    value_page_stride,
    PAGE_TOKENS: tl.constexpr,
    HAS_NORMS: tl.constexpr,
    BLOCK_HEADS: tl.constexpr,
    BLOCK_HALF: tl.constexpr,
):
    """Handle ``BLOCK_HEADS`` heads of token ``program_id(0)``."""
    token = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1) * BLOCK_HEADS + tl.arange(0, BLOCK_HEADS)
    columns = tl.arange(0, BLOCK_HALF)
    inside = columns < half
    tile = (head < num_heads + 2 * num_kv_heads)[:, None] & inside[None, :]
    is_query = head < num_heads
    is_value = head >= num_heads + num_kv_heads
    source = qkv + token * qkv_stride + head[:, None] * (2 * half) + columns[None, :]
    a = tl.load(source, mask=tile, other=0.0).to(tl.float32)
    b = tl.load(source + half, mask=tile, other=0.0).to(tl.float32)
    normed_a, normed_b = a, b
    if HAS_NORMS:
        query_a, query_b = _head_norm(a, b, query_weight, columns, inside, half, eps)
        key_a, key_b = _head_norm(a, b, key_weight, columns, inside, half, eps)
        normed_a = tl.where(is_query[:, None], query_a, key_a)
        normed_b = tl.where(is_query[:, None], query_b, key_b)
    c = tl.load(cos + token * cos_stride + columns, mask=inside, other=0.0).to(tl.float32)[None, :]
    s = tl.load(sin + token * sin_stride + columns, mask=inside, other=0.0).to(tl.float32)[None, :]
    turned_a = normed_a * c - normed_b * s
    turned_b = normed_b * c + normed_a * s
    target = queries + (token * num_heads + head[:, None]) * (2 * half) + columns[None, :]
    _store_halves(target, turned_a, turned_b, half, tile & is_query[:, None])
    slot = tl.load(slots + token)
    page, offset = slot // PAGE_TOKENS, slot % PAGE_TOKENS
    key_head = (head - num_heads)[:, None]
    target = keys + page * key_page_stride + (key_head * PAGE_TOKENS + offset) * (2 * half)
    is_key = (head >= num_heads) & (head < num_heads + num_kv_heads)
    _store_halves(target + columns[None, :], turned_a, turned_b, half, tile & is_key[:, None])
    value_head = (head - num_heads - num_kv_heads)[:, None]
    target = values + page * value_page_stride + (value_head * PAGE_TOKENS + offset) * (2 * half)
    _store_halves(target + columns[None, :], a, b, half, tile & is_value[:, None])


def rotary_and_write(
    qkv: torch.Tensor,
    cos: torch.Tensor,
    sin: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    slots: torch.Tensor,
    norms: tuple[torch.Tensor, torch.Tensor, float] | None = None,
) -> torch.Tensor:
    """Prepare queries and store keys and values.

    Args:
        qkv: ``(num_tokens, (num_heads + 2 * num_kv_heads) * head_dim)``; rows may be strided.
        cos: ``(num_tokens, head_dim / 2)``.
        sin: Same shape and type.
        keys: ``(num_pages, num_kv_heads, block_size, head_dim)``; pages may be strided.
        values: Same shape and type.
        slots: int64 ``(num_tokens,)``, ``page * block_size + offset``; they must lie in the pages
            (not checked: that would wait for the device).
        norms: float32 ``(head_dim,)`` of queries and of keys, and epsilon; or None.

    Returns:
        Rotated queries ``(num_tokens, num_heads, head_dim)``.

    Raises:
        KernelArgumentError: For wrong shapes, types, layouts or devices.
    """
    num_heads = _check(qkv, cos, sin, keys, values, slots, norms)
    num_tokens = qkv.shape[0]
    _, num_kv_heads, page_tokens, head_dim = keys.shape
    queries = torch.empty((num_tokens, num_heads, head_dim), dtype=qkv.dtype, device=qkv.device)
    if num_tokens == 0:
        return queries
    query_weight, key_weight, eps = norms or (cos, cos, 0.0)
    grid = (num_tokens, triton.cdiv(num_heads + 2 * num_kv_heads, BLOCK_HEADS))
    rotary_and_write_kernel[grid](
        qkv,
        cos,
        sin,
        keys,
        values,
        slots,
        query_weight,
        key_weight,
        queries,
        num_heads,
        num_kv_heads,
        head_dim // 2,
        eps,
        qkv.stride(0),
        cos.stride(0),
        sin.stride(0),
        keys.stride(0),
        values.stride(0),
        PAGE_TOKENS=page_tokens,
        HAS_NORMS=norms is not None,
        BLOCK_HEADS=BLOCK_HEADS,
        BLOCK_HALF=power_of_two(head_dim // 2),
        num_warps=4,
    )
    return queries


def check_pages(keys: torch.Tensor, values: torch.Tensor, like: torch.Tensor) -> None:
    """Refuse pages whose inner dimensions are not contiguous, or that differ from each other.

    Raises:
        KernelArgumentError: Names what is wrong.
    """
    check("keys", keys, (None, None, None, None), FLOAT_DTYPES, like=like)
    check("values", values, tuple(keys.shape), keys.dtype, like=like)
    _, _, block_size, head_dim = keys.shape
    for name, pages in (("keys", keys), ("values", values)):
        if pages.stride()[1:] != (block_size * head_dim, head_dim, 1):
            what = f"must be contiguous within a page, got strides {tuple(pages.stride())}"
            refuse(name, pages.stride(), what)


def _check(qkv, cos, sin, keys, values, slots, norms) -> int:
    """Check all arguments; return the number of query heads."""
    check("qkv", qkv, (None, None), FLOAT_DTYPES)
    check_rows_contiguous("qkv", qkv)
    check_pages(keys, values, like=qkv)
    num_tokens, width = qkv.shape
    _, num_kv_heads, _, head_dim = keys.shape
    num_heads = width // head_dim - 2 * num_kv_heads
    if head_dim % 2:
        refuse("keys", head_dim, f"must have an even head_dim, got {head_dim}")
    if width % head_dim or num_heads < 1:
        what = f"has width {width}, which is not queries and 2 x {num_kv_heads} heads of {head_dim}"
        refuse("qkv", width, what)
    for name, table in (("cos", cos), ("sin", sin)):
        check(name, table, (num_tokens, head_dim // 2), cos.dtype, like=qkv)
        check_rows_contiguous(name, table)
    check("cos", cos, (num_tokens, head_dim // 2), FLOAT_DTYPES, like=qkv)
    check("slots", slots, (num_tokens,), torch.int64, like=qkv)
    check_contiguous("slots", slots)
    for name, weight in zip(("query norm", "key norm"), (norms or ())[:2], strict=False):
        check(name, weight, (head_dim,), torch.float32, like=qkv)
        check_contiguous(name, weight)
    return num_heads
