"""Moves the kept rows of a KV cache together, so that pages become free.

Each key head keeps rows of its own, so a row is found by (head, kept row). Sources and targets may
lie in the same pages: the rows go through a buffer, in two launches of one kernel.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from infopt.kernels.triton_ops.common import check, check_contiguous, power_of_two
from infopt.kernels.triton_ops.rotary import check_pages

BLOCK_ROWS = 16


@triton.jit
def copy_rows_kernel(
    keys,
    values,
    key_buffer,
    value_buffer,
    slots,
    num_rows,
    head_dim,
    key_page_stride,
    value_page_stride,
    slot_head_stride,
    PAGE_TOKENS: tl.constexpr,
    TO_PAGES: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_D: tl.constexpr,
):
    """Copy rows of head ``program_id(1)`` between pages and buffers ``(heads, rows, head_dim)``."""
    rows = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    head = tl.program_id(1)
    columns = tl.arange(0, BLOCK_D)
    slot = tl.load(slots + head * slot_head_stride + rows, mask=rows < num_rows, other=0)
    inner = (head * PAGE_TOKENS + slot % PAGE_TOKENS) * head_dim
    mask = (rows < num_rows)[:, None] & (columns < head_dim)[None, :]
    in_buffer = (head.to(tl.int64) * num_rows + rows)[:, None] * head_dim + columns[None, :]
    page = slot // PAGE_TOKENS
    in_keys = (page * key_page_stride + inner)[:, None] + columns[None, :]
    in_values = (page * value_page_stride + inner)[:, None] + columns[None, :]
    if TO_PAGES:
        tl.store(keys + in_keys, tl.load(key_buffer + in_buffer, mask=mask), mask=mask)
        tl.store(values + in_values, tl.load(value_buffer + in_buffer, mask=mask), mask=mask)
    else:
        tl.store(key_buffer + in_buffer, tl.load(keys + in_keys, mask=mask), mask=mask)
        tl.store(value_buffer + in_buffer, tl.load(values + in_values, mask=mask), mask=mask)


def compact(
    keys: torch.Tensor, values: torch.Tensor, source: torch.Tensor, target: torch.Tensor
) -> None:
    """Copy rows of keys and values within their pages.

    Args:
        keys: ``(num_pages, num_kv_heads, block_size, head_dim)``; pages may be strided.
        values: Same shape and type.
        source: int64 ``(num_kv_heads, num_rows)``: ``page * block_size + offset`` of each kept row.
        target: int64 ``(num_rows,)``: where row i of all heads goes; no slot twice (not checked:
            that would wait for the device).

    Raises:
        KernelArgumentError: For wrong shapes, types, layouts or devices.
    """
    check("source", source, (None, None), torch.int64)
    num_heads, num_rows = source.shape
    check_pages(keys, values, like=source)
    _, _, block_size, head_dim = keys.shape
    check("keys", keys, (None, num_heads, block_size, head_dim), keys.dtype, like=source)
    check("target", target, (num_rows,), torch.int64, like=source)
    check_contiguous("source", source)
    check_contiguous("target", target)
    if source.numel() == 0:
        return
    shape = (num_heads, num_rows, head_dim)
    buffers = [torch.empty(shape, dtype=keys.dtype, device=keys.device) for _ in range(2)]
    grid = (triton.cdiv(num_rows, BLOCK_ROWS), num_heads)
    for slots, head_stride, to_pages in ((source, num_rows, False), (target, 0, True)):
        copy_rows_kernel[grid](
            keys,
            values,
            *buffers,
            slots,
            num_rows,
            head_dim,
            keys.stride(0),
            values.stride(0),
            head_stride,
            PAGE_TOKENS=block_size,
            TO_PAGES=to_pages,
            BLOCK_M=BLOCK_ROWS,
            BLOCK_D=power_of_two(head_dim),
            num_warps=4,
        )
