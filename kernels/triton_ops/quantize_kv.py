"""Row groups of keys and values out of full-precision pages into pages of integer codes.

The reference is :func:`infopt.ops.kv_quantization.quantize_pages`, whose module describes the
bytes. A program takes one head of one row group. Bytes are made n = 8 / bits codes at a time: each
pass loads the channels (of keys) or rows (of values) whose codes lie in the same bits of a byte.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from infopt.kernels.triton_ops.common import FLOAT_DTYPES, check, power_of_two, refuse
from infopt.kernels.triton_ops.rotary import check_pages

BITS = (2, 4, 8)


@triton.jit
def _steps(x, mask, AXIS: tl.constexpr, LEVELS: tl.constexpr):
    """Return scale and minimum along an axis, float16; NaN where a number is not finite."""
    low = tl.min(tl.where(mask, x, float("inf")), axis=AXIS)
    high = tl.max(tl.where(mask, x, float("-inf")), axis=AXIS)
    poison = tl.sum(x * 0.0, axis=AXIS)
    scale = tl.div_rn(high - low, tl.full(low.shape, LEVELS, tl.float32)) + poison
    largest = 65504.0
    scale = tl.where(scale > largest, largest, scale)
    low = low + poison
    low = tl.where(low > largest, largest, tl.where(low < -largest, -largest, low))
    return scale.to(tl.float16), low.to(tl.float16)


@triton.jit
def _codes(x, scale, minimum, LEVELS: tl.constexpr):
    """Return the nearest codes, ties to even, int32; 0 where there is no scale."""
    steps = tl.where(scale > 0, scale, 1.0)
    code = tl.div_rn(x - minimum, steps + tl.zeros_like(x))
    code = tl.where(code > 0, tl.where(code < LEVELS, code, LEVELS), 0.0)
    code = (code + 12582912.0) - 12582912.0  # 1.5 * 2^23: rounds to whole numbers
    return tl.where(scale > 0, code, 0.0).to(tl.int32)


@triton.jit
def _load_rows(pages, jobs, rows, columns, mask, page_stride, head_offset, head_dim, PAGE_TOKENS):
    """Load some rows of the row group, float32 ``(rows, columns)``."""
    page = tl.load(jobs + rows // PAGE_TOKENS)
    start = page * page_stride + head_offset + (rows % PAGE_TOKENS) * head_dim
    return tl.load(pages + start[:, None] + columns[None, :], mask=mask, other=0.0).to(tl.float32)


@triton.jit
def quantize_kv_kernel(
    keys,
    values,
    jobs,
    data,
    halves,
    head_dim,
    key_page_stride,
    value_page_stride,
    old_page_stride,
    old_head_bytes,
    job_stride,
    GROUP: tl.constexpr,
    PAGE_TOKENS: tl.constexpr,
    BITS: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BLOCK_B: tl.constexpr,
):
    """Quantize row group ``program_id(0)`` of head ``program_id(1)``."""
    PER_BYTE: tl.constexpr = 8 // BITS
    LEVELS: tl.constexpr = (1 << BITS) - 1
    job = jobs + tl.program_id(0).to(tl.int64) * job_stride
    head = tl.program_id(1).to(tl.int64)
    head_offset = head * PAGE_TOKENS * head_dim
    base = tl.load(job) * old_page_stride + head * old_head_bytes
    steps = halves + base // 2
    codes = data + base + 4 * (head_dim + GROUP)

    rows = tl.arange(0, GROUP)
    place = tl.arange(0, BLOCK_B)  # of a byte within the row
    inside = place < head_dim // PER_BYTE
    packed = tl.zeros([GROUP, BLOCK_B], tl.int32)
    for part in tl.static_range(PER_BYTE):
        column = place // 4 * (4 * PER_BYTE) + 4 * part + place % 4
        mask = (rows >= 0)[:, None] & inside[None, :]
        x = _load_rows(
            keys, job + 1, rows, column, mask, key_page_stride, head_offset, head_dim, PAGE_TOKENS
        )
        scale, minimum = _steps(x, mask, 0, LEVELS)
        tl.store(steps + column, scale, mask=inside)
        tl.store(steps + head_dim + column, minimum, mask=inside)
        code = _codes(x, scale.to(tl.float32)[None, :], minimum.to(tl.float32)[None, :], LEVELS)
        packed |= code << (BITS * part)
    word = (rows // 16)[:, None] * (head_dim // (4 * PER_BYTE)) + (place // 4)[None, :]
    target = codes + (word * 16 + (rows % 16)[:, None]) * 4 + (place % 4)[None, :]
    tl.store(target, packed.to(tl.uint8), mask=(rows >= 0)[:, None] & inside[None, :])

    columns = tl.arange(0, BLOCK_D)
    within = columns < head_dim
    group = tl.arange(0, GROUP // PER_BYTE)
    packed = tl.zeros([GROUP // PER_BYTE, BLOCK_D], tl.int32)
    for part in tl.static_range(PER_BYTE):
        row = group // 4 * (4 * PER_BYTE) + 4 * part + group % 4
        mask = (row >= 0)[:, None] & within[None, :]
        x = _load_rows(
            values,
            job + 1,
            row,
            columns,
            mask,
            value_page_stride,
            head_offset,
            head_dim,
            PAGE_TOKENS,
        )
        scale, minimum = _steps(x, mask, 1, LEVELS)
        tl.store(steps + 2 * head_dim + row, scale)
        tl.store(steps + 2 * head_dim + GROUP + row, minimum)
        code = _codes(x, scale.to(tl.float32)[:, None], minimum.to(tl.float32)[:, None], LEVELS)
        packed |= code << (BITS * part)
    word = (group // 4)[:, None] * head_dim + columns[None, :]
    target = codes + GROUP * head_dim * BITS // 8 + word * 4 + (group % 4)[:, None]
    tl.store(target, packed.to(tl.uint8), mask=(group >= 0)[:, None] & within[None, :])


def quantize_kv(
    keys: torch.Tensor,
    values: torch.Tensor,
    jobs: torch.Tensor,
    data: torch.Tensor,
    bits: int,
    group_size: int,
) -> None:
    """Quantize row groups.

    Args:
        keys: ``(num_pages, num_kv_heads, block_size, head_dim)``; pages may be strided.
        values: Same shape and type.
        jobs: int64 ``(num_jobs, 1 + group_size / block_size)``: the page to write, then the pages
            of the row group in order. Page ids are not checked: that would wait for the device.
        data: uint8 ``(num_quantized_pages, num_kv_heads, head_bytes)``, written where jobs say;
            pages may be strided.
        bits: 8, 4 or 2.
        group_size: Rows of a quantized page.

    Raises:
        KernelArgumentError: For wrong shapes, types, layouts or devices.
    """
    check("keys", keys, (None, None, None, None), FLOAT_DTYPES)
    check_pages(keys, values, like=keys)
    _, num_kv_heads, block_size, head_dim = keys.shape
    if bits not in BITS:
        refuse("bits", bits, f"must be one of {BITS}")
    if group_size % block_size or group_size % 16 or group_size & (group_size - 1):
        what = f"must be a power of two from 16 and a multiple of pages of {block_size}"
        refuse("group_size", group_size, what)
    head_bytes = 2 * group_size * head_dim * bits // 8 + 4 * (head_dim + group_size)
    check("data", data, (None, num_kv_heads, head_bytes), torch.uint8, like=keys)
    if data.stride(2) != 1 or data.stride(1) != head_bytes:
        refuse("data", data.stride(), "needs contiguous heads")
    check("jobs", jobs, (None, 1 + group_size // block_size), torch.int64, like=keys)
    if not jobs.shape[0]:
        return
    if jobs.stride(1) != 1:
        refuse("jobs", jobs.stride(), "needs contiguous rows")
    quantize_kv_kernel[(jobs.shape[0], num_kv_heads)](
        keys,
        values,
        jobs,
        data,
        data.view(torch.float16),
        head_dim,
        keys.stride(0),
        values.stride(0),
        data.stride(0),
        head_bytes,
        jobs.stride(0),
        GROUP=group_size,
        PAGE_TOKENS=block_size,
        BITS=bits,
        BLOCK_D=power_of_two(head_dim, 16),
        BLOCK_B=power_of_two(head_dim * bits // 8, 4),
        num_warps=8,
    )
