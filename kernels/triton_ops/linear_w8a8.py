"""Dynamic quantization of activations per row, and the product of int8 with int8 (W8A8).

    scale[r] = max |x[r]| / 127.5;  codes = round(x / scale)
    y[r, o] = (codes[r] . C[o]) * scale[r] * weight_scale[o] + b[o]

Sums of codes are exact integers, so the bits of a row depend on that row alone in every type.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from infopt.kernels.triton_ops import products
from infopt.kernels.triton_ops.common import (
    FLOAT_DTYPES,
    check,
    check_contiguous,
    check_rows_contiguous,
    power_of_two,
    refuse,
)
from infopt.kernels.triton_ops.rms_norm import MAX_SIZE, num_warps

MAX_INPUTS = 2**17
"""Longest sum of products of int8 that cannot leave an int32."""


@triton.jit
def quantize_rows_kernel(x, codes, scale, size, x_stride, BLOCK: tl.constexpr):
    """Quantize row ``program_id(0)``."""
    row = tl.program_id(0).to(tl.int64)
    columns = tl.arange(0, BLOCK)
    inside = columns < size
    values = tl.load(x + row * x_stride + columns, mask=inside, other=0.0).to(tl.float32)
    step = tl.math.div_rn(tl.max(tl.abs(values), axis=0), 127.5)
    tl.store(scale + row, step)
    scaled = tl.math.div_rn(values, tl.where(step > 0, step, 1.0))
    # Adding and taking away 1.5 * 2^23 rounds to the nearest integer, ties to even.
    rounded = (scaled + 12582912.0) - 12582912.0
    bounded = tl.minimum(tl.maximum(rounded, -128.0), 127.0)
    tl.store(codes + row * size + columns, bounded.to(tl.int8), mask=inside)


@triton.jit
def w8a8_linear_kernel(
    codes,
    row_scale,
    weight,
    scale,
    bias,
    out,
    num_rows,
    num_outputs,
    num_inputs,
    HAS_BIAS: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
):
    """Compute one tile of outputs."""
    rows, outputs = products.tile_indices(BLOCK_M, BLOCK_N)
    summed = tl.zeros([BLOCK_M, BLOCK_N], tl.int32)
    for start in range(0, num_inputs, BLOCK_K):
        columns = start + tl.arange(0, BLOCK_K)
        inside = columns < num_inputs
        mask = (rows < num_rows)[:, None] & inside[None, :]
        part = tl.load(codes + rows[:, None] * num_inputs + columns[None, :], mask=mask, other=0)
        mask = (outputs < num_outputs)[:, None] & inside[None, :]
        other = tl.load(
            weight + outputs[:, None] * num_inputs + columns[None, :], mask=mask, other=0
        )
        summed = tl.dot(part, tl.trans(other), acc=summed, out_dtype=tl.int32)
    of_rows = tl.load(row_scale + rows, mask=rows < num_rows, other=0.0)
    of_outputs = tl.load(scale + outputs, mask=outputs < num_outputs, other=0.0).to(tl.float32)
    result = summed.to(tl.float32) * of_rows[:, None] * of_outputs[None, :]
    products.store_product(result, bias, out, rows, outputs, num_rows, num_outputs, HAS_BIAS)


def quantize_rows(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Quantize each row to int8.

    Args:
        x: ``(num_rows, size)``; rows may be strided.

    Returns:
        int8 codes of the same shape and float32 scales ``(num_rows,)``; a row of zeros has scale 0.

    Raises:
        KernelArgumentError: For wrong shapes, types, layouts or devices.
    """
    check("x", x, (None, None), FLOAT_DTYPES)
    check_rows_contiguous("x", x)
    if x.shape[1] > MAX_SIZE:
        refuse("x", x.shape[1], f"has rows of {x.shape[1]}, the limit is {MAX_SIZE}")
    codes = torch.empty(x.shape, dtype=torch.int8, device=x.device)
    scale = torch.empty(x.shape[0], dtype=torch.float32, device=x.device)
    if x.numel():
        block = power_of_two(x.shape[1])
        quantize_rows_kernel[(x.shape[0],)](
            x, codes, scale, x.shape[1], x.stride(0), BLOCK=block, num_warps=num_warps(block)
        )
    return codes, scale


def w8a8_linear(
    x: torch.Tensor, weight: torch.Tensor, scale: torch.Tensor, bias: torch.Tensor | None = None
) -> torch.Tensor:
    """Quantize the activations row by row and multiply with an int8 weight.

    Args:
        x: ``(num_rows, in_features)``; rows may be strided.
        weight: int8 ``(out_features, in_features)``.
        scale: float32 or float16 ``(out_features,)``.
        bias: ``(out_features,)`` or None.

    Returns:
        ``(num_rows, out_features)`` in the type of ``x``.

    Raises:
        KernelArgumentError: For wrong shapes, types, layouts or devices.
    """
    check("weight", weight, (None, None), torch.int8)
    num_outputs, num_inputs = weight.shape
    products.check_activations(x, num_inputs)
    products.check_weight(x, scale, (num_outputs,), bias, num_outputs, ("weight", weight))
    check_contiguous("weight", weight)
    if num_inputs > MAX_INPUTS:
        refuse("weight", num_inputs, f"has {num_inputs} inputs, the limit is {MAX_INPUTS}")
    out = torch.empty((x.shape[0], num_outputs), dtype=x.dtype, device=x.device)
    if out.numel() == 0:
        return out
    codes, row_scale = quantize_rows(x)
    shape = w8a8_shape(x.shape[0])
    w8a8_linear_kernel[products.grid(x.shape[0], num_outputs, shape)](
        codes,
        row_scale,
        weight,
        scale,
        scale if bias is None else bias,
        out,
        x.shape[0],
        num_outputs,
        num_inputs,
        HAS_BIAS=bias is not None,
        BLOCK_M=shape.rows,
        BLOCK_N=shape.outputs,
        BLOCK_K=shape.inputs,
        num_warps=shape.num_warps,
        num_stages=shape.num_stages,
    )
    return out


def w8a8_shape(num_rows: int) -> products.ProductShape:
    """Return the tile; any will do for the bits, since integer sums are exact."""
    if num_rows <= products.FEW_ROWS:
        return products.ProductShape(16, 32, 256, 4, 3)
    return products.ProductShape(64 if num_rows <= 64 else 128, 128, 64, 8, 3)
