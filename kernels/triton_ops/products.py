"""What the products with quantized weights share: block shapes, checks, the grid, the epilogue.

All compute ``y = x W^T + b`` for ``x`` of shape ``(num_rows, in_features)``. Up to 16 rows (decode)
take narrow tiles that keep many weight bytes in flight; more take square ones. Float32 has a single
shape and one order of summation over the inputs at any number of rows, so the bits of a row depend
on that row alone.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import triton
import triton.language as tl

from infopt.kernels.triton_ops.common import (
    FLOAT_DTYPES,
    check,
    check_contiguous,
    check_rows_contiguous,
    dot_type,
    refuse,
    round_to,
)

FEW_ROWS = 16


@dataclass(frozen=True, slots=True)
class ProductShape:
    """Sizes of one compiled variant: rows, outputs and inputs of a tile, warps, stages."""

    rows: int
    outputs: int
    inputs: int
    num_warps: int
    num_stages: int


@triton.jit
def tile_indices(BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr):
    """Return the rows and outputs of this program; row blocks of one weight tile run together."""
    rows = (tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)).to(tl.int64)
    outputs = (tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)).to(tl.int64)
    return rows, outputs


@triton.jit
def load_rows(x, rows, num_rows, x_stride, columns, num_inputs):
    """Load ``(rows, columns)`` of the activations, 0 outside."""
    mask = (rows < num_rows)[:, None] & (columns < num_inputs)[None, :]
    return tl.load(x + rows[:, None] * x_stride + columns[None, :], mask=mask, other=0.0)


@triton.jit
def store_product(result, bias, out, rows, outputs, num_rows, num_outputs, HAS_BIAS: tl.constexpr):
    """Add the bias and store a tile."""
    if HAS_BIAS:
        added = tl.load(bias + outputs, mask=outputs < num_outputs, other=0.0).to(tl.float32)
        result += added[None, :]
    mask = (rows < num_rows)[:, None] & (outputs < num_outputs)[None, :]
    target = out + rows[:, None] * num_outputs + outputs[None, :]
    tl.store(target, round_to(result, out.dtype.element_ty), mask=mask)


def product_shape(dtype: torch.dtype, num_rows: int) -> ProductShape:
    """Return the tile for a type of activations and a number of rows."""
    if dtype == torch.float32:
        return ProductShape(16, 64, 32, 4, 2)
    if num_rows <= FEW_ROWS:
        return ProductShape(16, 32, 256, 4, 3)
    return ProductShape(64 if num_rows <= 64 else 128, 128, 64, 8, 3)


def grid(num_rows: int, num_outputs: int, shape: ProductShape) -> tuple[int, int]:
    """Return the programs of a product."""
    return triton.cdiv(num_rows, shape.rows), triton.cdiv(num_outputs, shape.outputs)


def launch_scaled(
    kernel: Any,
    x: torch.Tensor,
    codes: torch.Tensor,
    scale: torch.Tensor,
    bias: torch.Tensor | None,
) -> torch.Tensor:
    """Multiply with a weight that has one scale per output; arguments are checked already.

    Args:
        kernel: Multiplies a tile; takes what `int8_linear_kernel` takes.
        x: ``(num_rows, in_features)``; rows may be strided.
        codes: ``(out_features, in_features)`` in a type of one byte.
        scale: float32 or float16 ``(out_features,)``.
        bias: ``(out_features,)`` or None.

    Returns:
        ``(num_rows, out_features)`` in the type of ``x``.
    """
    num_outputs, num_inputs = codes.shape
    out = torch.empty((x.shape[0], num_outputs), dtype=x.dtype, device=x.device)
    if out.numel() == 0:
        return out
    shape = product_shape(x.dtype, x.shape[0])
    kernel[grid(x.shape[0], num_outputs, shape)](
        x,
        codes,
        scale,
        scale if bias is None else bias,
        out,
        x.shape[0],
        num_outputs,
        num_inputs,
        x.stride(0),
        HAS_BIAS=bias is not None,
        DOT=dot_type(x.dtype),
        BLOCK_M=shape.rows,
        BLOCK_N=shape.outputs,
        BLOCK_K=shape.inputs,
        num_warps=shape.num_warps,
        num_stages=shape.num_stages,
    )
    return out


def check_activations(x: torch.Tensor, in_features: int) -> None:
    """Refuse activations of another width, type or layout (rows may be strided)."""
    check("x", x, (None, in_features), FLOAT_DTYPES)
    check_rows_contiguous("x", x)


def check_weight(
    x: torch.Tensor,
    scale: torch.Tensor,
    scale_shape: tuple[int, ...],
    bias: torch.Tensor | None,
    num_outputs: int,
    *weights: tuple[str, torch.Tensor],
) -> None:
    """Refuse scales, bias and weights that do not fit together."""
    check("scale", scale, scale_shape, (torch.float32, torch.float16), like=x)
    check_contiguous("scale", scale)
    if bias is not None:
        check("bias", bias, (num_outputs,), FLOAT_DTYPES, like=x)
        check_contiguous("bias", bias)
    for name, weight in weights:
        if weight.device != x.device:
            refuse(name, weight.device, f"must be on {x.device}, got {weight.device}")
        check_contiguous(name, weight)
