"""RMSNorm with an optional residual addition in front (arXiv 1910.07467), one row per program.

The reference is :func:`infopt.ops.rms_norm.add_rms_norm`: the sum is rounded to the compute type,
statistics are float32. A row is read once and stays in registers. Its bits depend on it alone.
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

MAX_SIZE = 32768
"""Longest row: it has to fit the registers of one program."""


@triton.jit
def add_rms_norm_kernel(
    x,
    residual,
    weight,
    normed,
    total,
    size,
    x_stride,
    residual_stride,
    eps,
    HAS_RESIDUAL: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Normalise row ``program_id(0)`` of ``x (+ residual)``."""
    row = tl.program_id(0).to(tl.int64)
    columns = tl.arange(0, BLOCK)
    inside = columns < size
    values = tl.load(x + row * x_stride + columns, mask=inside, other=0.0).to(tl.float32)
    if HAS_RESIDUAL:
        added = tl.load(residual + row * residual_stride + columns, mask=inside, other=0.0)
        rounded = round_to(values + added.to(tl.float32), total.dtype.element_ty)
        tl.store(total + row * size + columns, rounded, mask=inside)
        values = rounded.to(tl.float32)
    mean_square = tl.sum(values * values, axis=0) / size
    factor = tl.load(weight + columns, mask=inside, other=0.0)
    result = values * (1.0 / tl.sqrt(mean_square + eps)) * factor
    tl.store(normed + row * size + columns, round_to(result, normed.dtype.element_ty), mask=inside)


def add_rms_norm(
    x: torch.Tensor, residual: torch.Tensor | None, weight: torch.Tensor, eps: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """Add the residual, then normalise.

    Args:
        x: ``(num_tokens, size)``; rows may be strided.
        residual: Same shape and type, or None.
        weight: float32 ``(size,)``.
        eps: Added to the mean square.

    Returns:
        ``(normed, x + residual)``; without a residual the second is ``x`` itself.

    Raises:
        KernelArgumentError: For wrong shapes, types, layouts or devices.
    """
    check_arguments(x, residual, weight)
    num_rows, size = x.shape
    if size > MAX_SIZE:
        refuse("x", size, f"has rows of {size}, the limit is {MAX_SIZE}")
    normed = torch.empty((num_rows, size), dtype=x.dtype, device=x.device)
    total = x if residual is None else torch.empty_like(normed)
    if normed.numel() == 0:
        return normed, total
    block = power_of_two(size)
    add_rms_norm_kernel[(num_rows,)](
        x,
        x if residual is None else residual,
        weight,
        normed,
        total,
        size,
        x.stride(0),
        0 if residual is None else residual.stride(0),
        eps,
        HAS_RESIDUAL=residual is not None,
        BLOCK=block,
        num_warps=num_warps(block),
    )
    return normed, total


def check_arguments(x: torch.Tensor, residual: torch.Tensor | None, weight: torch.Tensor) -> None:
    """Refuse what does not fit together.

    Raises:
        KernelArgumentError: Names the argument.
    """
    check("x", x, (None, None), FLOAT_DTYPES)
    check_rows_contiguous("x", x)
    check("weight", weight, (x.shape[1],), torch.float32, like=x)
    check_contiguous("weight", weight)
    if residual is not None:
        check("residual", residual, tuple(x.shape), x.dtype, like=x)
        check_rows_contiguous("residual", residual)


def num_warps(block: int) -> int:
    """Return how many warps share a row: at most 16 values a thread, up to 16 warps."""
    return min(max(block // 512, 1), 16)
