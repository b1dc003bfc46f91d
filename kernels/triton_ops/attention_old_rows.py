"""Rows of the KV cache in fewer bits, as Triton's attention reads them.

The layout of the bytes is described in :mod:`infopt.ops.kv_quantization`.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from infopt.kernels.triton_ops.common import check, refuse

KINDS = {"int8": (8, 0), "int4": (4, 0), "int2": (2, 0), "fp8_e4m3": (8, 4), "fp8_e5m2": (8, 5)}
"""Bits of a code, and exponent bits of those that are numbers themselves (0: integers)."""


@dataclass(frozen=True, slots=True)
class OldRows:
    """Quantized pages of a layer and where each sequence has them.

    Attributes:
        data: uint8 ``(num_pages, num_kv_heads, head_bytes)``; pages may be strided.
        tables: int32 ``(num_seqs, max_groups)``: pages by row // group_size; rows may be strided.
        dtype: ``int8``, ``int4``, ``int2``, ``fp8_e4m3`` or ``fp8_e5m2``.
        group_size: Rows of a page.
        residual: Newest rows that a query reads in full precision.
    """

    data: torch.Tensor
    tables: torch.Tensor
    dtype: str
    group_size: int
    residual: int

    @property
    def bits(self) -> int:
        """Bits of a code."""
        return KINDS[self.dtype][0]

    @property
    def exponent_bits(self) -> int:
        """Exponent bits of codes that are numbers; 0 for integers."""
        return KINDS[self.dtype][1]

    def check(self, keys: torch.Tensor) -> None:
        """Refuse what does not belong to full-precision pages.

        Raises:
            KernelArgumentError: For wrong shapes, types, layouts or devices.
        """
        _, num_kv_heads, block_size, head_dim = keys.shape
        if self.dtype not in KINDS:
            refuse("dtype", self.dtype, f"must be one of {', '.join(KINDS)}")
        codes = 2 * self.group_size * head_dim * self.bits // 8
        steps = 0 if self.exponent_bits else 4 * (head_dim + self.group_size)
        check("data", self.data, (None, num_kv_heads, codes + steps), torch.uint8, like=keys)
        if self.data.stride(2) != 1 or self.data.stride(1) != codes + steps:
            refuse("data", self.data.stride(), "needs contiguous heads")
        check("tables", self.tables, (None, None), torch.int32, like=keys)
        if self.tables.shape[1] > 1 and self.tables.stride(1) != 1:
            refuse("tables", self.tables.stride(), "needs contiguous rows")
        if self.group_size % block_size or self.residual % block_size:
            what = f"and residual {self.residual} must be multiples of pages of {block_size}"
            refuse("group_size", self.group_size, what)


@triton.jit
def old_bounds(row, valid, PAGE_TOKENS: tl.constexpr, RESIDUAL: tl.constexpr, BITS: tl.constexpr):
    """Return how many leading rows each query reads quantized; the fewest and the most."""
    if BITS == 0:
        return tl.zeros_like(row), 0, 0
    last = tl.maximum(row // PAGE_TOKENS * PAGE_TOKENS - RESIDUAL + 1, 0)
    bound = last // PAGE_TOKENS * PAGE_TOKENS
    highest = tl.max(bound, axis=0)
    return bound, tl.min(tl.where(valid, bound, highest), axis=0), highest


@triton.jit
def _bases(tables, tokens, inside, head, page_stride, head_bytes, GROUP: tl.constexpr):
    """Return the first byte of the page and head that hold each row."""
    page = tl.load(tables + tokens // GROUP, mask=inside, other=0).to(tl.int64)
    return page * page_stride + head * head_bytes


@triton.jit
def _numbers(codes, EXPONENT: tl.constexpr):
    """Return float8 numbers as float32: their bits are the upper bits of float16 numbers."""
    if EXPONENT == 5:
        half = (codes << 8).to(tl.int16)
        return half.to(tl.float16, bitcast=True).to(tl.float32)
    half = (((codes & 0x80) << 8) | ((codes & 0x7F) << 7)).to(tl.int16)
    values = half.to(tl.float16, bitcast=True).to(tl.float32) * 256.0
    return tl.where((codes & 0x7F) == 0x7F, float("nan"), values)


@triton.jit
def _load_keys(
    data,
    halves,
    base,
    tokens,
    inside,
    columns,
    head_dim,
    BITS: tl.constexpr,
    EXPONENT: tl.constexpr,
    GROUP: tl.constexpr,
):
    """Load keys of some rows, float32 ``(rows, columns)``; 0 where not inside."""
    WORD: tl.constexpr = 32 // BITS
    row = tokens % GROUP
    mask = inside[:, None] & (columns < head_dim)[None, :]
    word = (row // 16)[:, None] * (head_dim // WORD) + (columns // WORD)[None, :]
    byte = (word * 16 + (row % 16)[:, None]) * 4 + (columns % WORD % 4)[None, :]
    if EXPONENT == 0:
        byte += 4 * (head_dim + GROUP)
    codes = tl.load(data + base[:, None] + byte, mask=mask, other=0).to(tl.int32)
    codes = (codes >> (BITS * (columns % WORD // 4))[None, :]) & ((1 << BITS) - 1)
    if EXPONENT > 0:
        return _numbers(codes, EXPONENT)
    step = halves + (base // 2)[:, None] + columns[None, :]
    scale = tl.load(step, mask=mask, other=0.0).to(tl.float32)
    return codes.to(tl.float32) * scale + tl.load(step + head_dim, mask=mask, other=0.0).to(
        tl.float32
    )


@triton.jit
def _load_values(
    data,
    halves,
    base,
    tokens,
    inside,
    columns,
    head_dim,
    BITS: tl.constexpr,
    EXPONENT: tl.constexpr,
    GROUP: tl.constexpr,
):
    """Load values of some rows, float32 ``(rows, columns)``; 0 where not inside."""
    WORD: tl.constexpr = 32 // BITS
    row = tokens % GROUP
    mask = inside[:, None] & (columns < head_dim)[None, :]
    word = (row // WORD)[:, None] * head_dim + columns[None, :]
    byte = GROUP * head_dim * BITS // 8 + word * 4 + (row % WORD % 4)[:, None]
    if EXPONENT == 0:
        byte += 4 * (head_dim + GROUP)
    codes = tl.load(data + base[:, None] + byte, mask=mask, other=0).to(tl.int32)
    codes = (codes >> (BITS * (row % WORD // 4))[:, None]) & ((1 << BITS) - 1)
    if EXPONENT > 0:
        return _numbers(codes, EXPONENT)
    step = halves + base // 2 + 2 * head_dim + row
    scale = tl.load(step, mask=inside, other=0.0).to(tl.float32)
    minimum = tl.load(step + GROUP, mask=inside, other=0.0).to(tl.float32)
    return tl.where(mask, codes.to(tl.float32) * scale[:, None] + minimum[:, None], 0.0)


@triton.jit
def old_products(
    products,
    queries,
    is_old,
    data,
    halves,
    table,
    tokens,
    inside,
    columns,
    head,
    page_stride,
    head_bytes,
    head_dim,
    highest,
    DOT: tl.constexpr,
    BITS: tl.constexpr,
    EXPONENT: tl.constexpr,
    GROUP: tl.constexpr,
):
    """Return the products of queries and keys, those of quantized rows where a query reads them."""
    if tl.min(tokens, axis=0) < highest:
        below = inside & (tokens < highest)
        base = _bases(table, tokens, below, head, page_stride, head_bytes, GROUP)
        k = _load_keys(data, halves, base, tokens, below, columns, head_dim, BITS, EXPONENT, GROUP)
        old = tl.dot(queries, tl.trans(k.to(DOT)), input_precision="ieee")
        products = tl.where(is_old, old, products)
    return products


@triton.jit
def add_old_values(
    summed,
    weights,
    is_old,
    data,
    halves,
    table,
    tokens,
    inside,
    columns,
    head,
    page_stride,
    head_bytes,
    head_dim,
    highest,
    DOT: tl.constexpr,
    BITS: tl.constexpr,
    EXPONENT: tl.constexpr,
    GROUP: tl.constexpr,
):
    """Add the values of quantized rows, weighted where a query reads them."""
    if tl.min(tokens, axis=0) < highest:
        below = inside & (tokens < highest)
        base = _bases(table, tokens, below, head, page_stride, head_bytes, GROUP)
        v = _load_values(
            data, halves, base, tokens, below, columns, head_dim, BITS, EXPONENT, GROUP
        )
        part = tl.where(is_old, weights, tl.zeros_like(weights))
        summed = tl.dot(part, v.to(DOT), acc=summed, input_precision="ieee")
    return summed
