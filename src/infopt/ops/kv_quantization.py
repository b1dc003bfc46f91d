"""Quantized KV pages: format, quantization and its inverse. The reference.

A quantized page holds one *row group*: ``group_size`` consecutive rows (tokens) of one KV group.
Keys are coded per channel over the rows of the group, values per row over the channels of a head
(KIVI, arXiv 2402.02750: outliers of keys sit in channels, those of values do not):

    x ~ code * scale + minimum,   scale = (max - min) / (2^bits - 1)

Scale and minimum are rounded to float16 first and codes are chosen for the rounded ones, so every
reader uses the same numbers. A constant channel has scale 0 and comes back as its minimum. NaN or
an infinity makes scale and minimum of its channel (or row) NaN, so that it cannot hide; magnitudes
beyond 65,504 saturate. The float8 formats have no scale: values are rounded, saturating at 448
(e4m3) or 57,344 (e5m2), and NaN stays NaN.

Which form a query reads depends on rows alone: with pages of P rows and a residual of R, the query
in row r reads page p quantized iff last(p) <= floor(r / P) P - R, where last(p) = (p + 1) P - 1.

One head of a page is a run of bytes: as float16 the scales and minima of keys (head_dim each) and
of values (group_size each), codes of keys, codes of values. Codes are 32-bit words that lie as
vector units read them, n = 8 / bits codes per byte, code c of byte b being channel (or row) 4 c + b
of the 4 n that a word covers:

    keys    (group_size / 16, head_dim / 4 n, 16 rows)       words, each of 4 n channels
    values  (group_size / 4 n, head_dim)                     words, each of 4 n rows
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import torch

from infopt.errors import ConfigError
from infopt.ops import cpu, gpu
from infopt.ops.dispatch import Implementation

if TYPE_CHECKING:
    from infopt.ops.context import KVPages

BITS = {"int8": 8, "int4": 4, "int2": 2, "fp8_e4m3": 8, "fp8_e5m2": 8}
FLOAT_TYPES = {"fp8_e4m3": torch.float8_e4m3fn, "fp8_e5m2": torch.float8_e5m2}
GROUP_SIZES = (16, 32, 64, 128)
"""Row groups that kernels know; they divide the rows that attention reads at a time."""

ROWS_PER_BLOCK = 16
HEAD_DIM_MULTIPLE = 16
_LARGEST_HALF = 65504.0


@dataclass(frozen=True, slots=True)
class KVFormat:
    """How old rows of the KV cache are kept.

    Attributes:
        dtype: ``int8``, ``int4``, ``int2``, ``fp8_e4m3`` or ``fp8_e5m2``.
        group_size: Rows of a quantized page.
        residual: Newest rows that stay in full precision (R above).
    """

    dtype: str
    group_size: int = 64
    residual: int = 128

    @property
    def bits(self) -> int:
        """Bits of a code."""
        return BITS[self.dtype]

    @property
    def is_float(self) -> bool:
        """Whether codes are float8 numbers, without scales."""
        return self.dtype in FLOAT_TYPES

    @property
    def codes_per_word(self) -> int:
        """Codes in 32 bits."""
        return 32 // self.bits

    def head_bytes(self, head_dim: int) -> int:
        """Bytes that keys and values of one head take in a page."""
        codes = 2 * self.group_size * head_dim * self.bits // 8
        return codes + (0 if self.is_float else 4 * (head_dim + self.group_size))

    def num_readable_pages(self, row: int, block_size: int) -> int:
        """Return how many leading pages the query in a row reads quantized."""
        return max((row // block_size * block_size - self.residual + 1) // block_size, 0)

    def readable_rows(self, rows: torch.Tensor, block_size: int) -> torch.Tensor:
        """Return, for queries in these rows, how many leading rows each reads quantized."""
        last = rows // block_size * block_size - self.residual + 1
        return (last.clamp(min=0) // block_size) * block_size

    def check(self, block_size: int, longest_draft: int = 0) -> None:
        """Check group and residual against pages and drafts.

        Raises:
            ConfigError: If they do not divide, or if a drafted row could be quantized.
        """
        if self.group_size not in GROUP_SIZES or self.group_size % block_size:
            raise ConfigError(
                f"kv_group_size={self.group_size} must be one of {GROUP_SIZES} and a multiple of "
                f"block_size={block_size}.",
                field="kv_group_size",
                value=self.group_size,
                remedy="The default is 64, with pages of 16 tokens.",
            )
        least = self.group_size + longest_draft + 1
        least += -least % block_size
        if self.residual % block_size or self.residual < least:
            raise ConfigError(
                f"kv_residual={self.residual} must be a multiple of block_size={block_size} and at "
                f"least {least}: a row group of {self.group_size} and {longest_draft} drafted "
                "tokens must stay in full precision.",
                field="kv_residual",
                value=self.residual,
                remedy=f"Use {least} or more, or shorter drafts or row groups.",
            )

    def check_head_dim(self, head_dim: int) -> None:
        """Check that heads can be cut into words.

        Raises:
            ConfigError: If they cannot.
        """
        if head_dim % HEAD_DIM_MULTIPLE:
            raise ConfigError(
                f"kv_cache_dtype={self.dtype!r} with kv_group_size={self.group_size} needs heads "
                f"whose size is a multiple of {HEAD_DIM_MULTIPLE}, this model's head_dim is "
                f"{head_dim}.",
                field="kv_cache_dtype",
                value=self.dtype,
                remedy="Use kv_cache_dtype='auto'.",
            )


class QuantizedPages(NamedTuple):
    """Quantized pages of one layer.

    Attributes:
        data: uint8 ``(num_pages, num_kv_heads, head_bytes)``; heads are contiguous.
        format: What the bytes mean.
        head_dim: Width of a head.
    """

    data: torch.Tensor
    format: KVFormat
    head_dim: int


class Dequantized(NamedTuple):
    """Keys and values as numbers, float32 ``(..., group_size, head_dim)``."""

    keys: torch.Tensor
    values: torch.Tensor


def quantize_pages(pages: KVPages, jobs: torch.Tensor) -> None:
    """Quantize row groups out of full-precision pages.

    Args:
        pages: Both forms of a layer.
        jobs: int64 ``(num_jobs, 1 + group_size / block_size)``: the quantized page to write, then
            the pages of the row group in order.
    """
    if not jobs.shape[0]:
        return
    quantized = pages.quantized
    assert quantized is not None
    keys, values = (_row_groups(part, jobs[:, 1:]) for part in (pages.keys, pages.values))
    quantized.data[jobs[:, 0]] = encode(keys, values, quantized.format)


def encode(keys: torch.Tensor, values: torch.Tensor, fmt: KVFormat) -> torch.Tensor:
    """Return the bytes of row groups.

    Args:
        keys: ``(..., group_size, head_dim)``, rotated.
        values: Same shape.
        fmt: The format.

    Returns:
        uint8 ``(..., head_bytes)``.
    """
    keys, values = keys.float(), values.float()
    if fmt.is_float:
        key_codes, value_codes = _float_codes(keys, fmt), _float_codes(values, fmt)
        return torch.cat((pack_keys(key_codes, fmt), pack_values(value_codes, fmt)), dim=-1)
    key_codes, *key_steps = _integer_codes(keys, fmt.bits, dim=-2)
    value_codes, *value_steps = _integer_codes(values, fmt.bits, dim=-1)
    steps = [part.flatten(-2).view(torch.uint8) for part in (*key_steps, *value_steps)]
    return torch.cat((*steps, pack_keys(key_codes, fmt), pack_values(value_codes, fmt)), dim=-1)


def decode(data: torch.Tensor, fmt: KVFormat, head_dim: int) -> Dequantized:
    """Return what the bytes of heads stand for.

    Args:
        data: uint8 ``(..., head_bytes)``.
        fmt: The format.
        head_dim: Width of a head.
    """
    num_codes = fmt.group_size * head_dim * fmt.bits // 8
    num_steps = data.shape[-1] - 2 * num_codes
    keys = unpack_keys(data[..., num_steps : num_steps + num_codes], fmt, head_dim)
    values = unpack_values(data[..., num_steps + num_codes :], fmt, head_dim)
    if fmt.is_float:
        kind = FLOAT_TYPES[fmt.dtype]
        return Dequantized(keys.view(kind).float(), values.view(kind).float())
    steps = data[..., :num_steps].contiguous().view(torch.float16).float()
    sizes = [head_dim, head_dim, fmt.group_size, fmt.group_size]
    key_scale, key_min, value_scale, value_min = steps.split(sizes, dim=-1)
    return Dequantized(
        keys * key_scale.unsqueeze(-2) + key_min.unsqueeze(-2),
        values * value_scale.unsqueeze(-1) + value_min.unsqueeze(-1),
    )


def pack_keys(codes: torch.Tensor, fmt: KVFormat) -> torch.Tensor:
    """Return uint8 ``(..., bytes)`` of codes ``(..., group_size, head_dim)`` (see the module)."""
    *lead, rows, dim = codes.shape
    per_byte = 8 // fmt.bits
    words = codes.reshape(*lead, rows // 16, 16, dim // (4 * per_byte), per_byte, 4)
    return _join(words.transpose(-4, -3).transpose(-1, -2), fmt.bits).flatten(len(lead))


def unpack_keys(data: torch.Tensor, fmt: KVFormat, head_dim: int) -> torch.Tensor:
    """Return codes ``(..., group_size, head_dim)``; the inverse of :func:`pack_keys`."""
    lead, per_byte = data.shape[:-1], 8 // fmt.bits
    shape = (fmt.group_size // 16, head_dim // (4 * per_byte), 16, 4)
    codes = _split(data.reshape(*lead, *shape), fmt.bits).transpose(-1, -2).transpose(-4, -3)
    return codes.reshape(*lead, fmt.group_size, head_dim)


def pack_values(codes: torch.Tensor, fmt: KVFormat) -> torch.Tensor:
    """Return uint8 ``(..., bytes)`` of codes ``(..., group_size, head_dim)`` (see the module)."""
    *lead, rows, dim = codes.shape
    per_byte = 8 // fmt.bits
    words = codes.reshape(*lead, rows // (4 * per_byte), per_byte, 4, dim)
    words = words.movedim(-1, -3).transpose(-1, -2)
    return _join(words, fmt.bits).flatten(len(lead))


def unpack_values(data: torch.Tensor, fmt: KVFormat, head_dim: int) -> torch.Tensor:
    """Return codes ``(..., group_size, head_dim)``; the inverse of :func:`pack_values`."""
    lead, per_byte = data.shape[:-1], 8 // fmt.bits
    shape = (fmt.group_size // (4 * per_byte), head_dim, 4)
    codes = _split(data.reshape(*lead, *shape), fmt.bits).transpose(-1, -2).movedim(-3, -1)
    return codes.reshape(*lead, fmt.group_size, head_dim)


def _join(codes: torch.Tensor, bits: int) -> torch.Tensor:
    """Join the codes of the last dimension into bytes, the first one lowest."""
    joined = codes[..., 0].clone()
    for index in range(1, codes.shape[-1]):
        joined |= codes[..., index] << (bits * index)
    return joined


def _split(data: torch.Tensor, bits: int) -> torch.Tensor:
    """Return the codes of each byte in a new last dimension."""
    mask = (1 << bits) - 1
    return torch.stack([(data >> shift) & mask for shift in range(0, 8, bits)], dim=-1)


def _integer_codes(
    x: torch.Tensor, bits: int, dim: int
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return codes (uint8), scales and minima (float16, ``dim`` kept with size 1)."""
    levels = (1 << bits) - 1
    low, high = x.amin(dim, keepdim=True), x.amax(dim, keepdim=True)
    # Not finite: NaN, for scale and minimum.
    poison = (high - low) * 0
    scale, minimum = _half((high - low) / levels + poison), _half(low + poison)
    steps = torch.where(scale > 0, scale.float(), 1.0)
    codes = ((x - minimum.float()) / steps).round().clamp(0, levels)
    codes = torch.where(scale > 0, codes, 0.0)  # a NaN among them has a NaN scale
    return codes.to(torch.uint8), scale, minimum


def _half(x: torch.Tensor) -> torch.Tensor:
    return x.clamp(-_LARGEST_HALF, _LARGEST_HALF).half()


def _float_codes(x: torch.Tensor, fmt: KVFormat) -> torch.Tensor:
    kind = FLOAT_TYPES[fmt.dtype]
    largest = torch.finfo(kind).max
    return x.clamp(-largest, largest).to(kind).view(torch.uint8)


def _row_groups(pages: torch.Tensor, table: torch.Tensor) -> torch.Tensor:
    """Return ``(num_groups, num_kv_heads, group_size, head_dim)`` of the pages in a table."""
    blocks = pages[table]  # (groups, pages, heads, block, dim)
    groups, num_pages, heads, block, dim = blocks.shape
    return blocks.transpose(1, 2).reshape(groups, heads, num_pages * block, dim)


IMPLEMENTATIONS = [
    Implementation("cpu", cpu.load_quantize_pages, cpu.why_not),
    Implementation("triton", gpu.load_quantize_pages, gpu.why_not_quantize_pages),
    Implementation("reference", lambda: quantize_pages),
]
