"""Product with float8 weights (e4m3, finite), one scale per output: ``y = (x W^T) * scale + b``.

The bits are taken apart by hand, since GPUs before compute capability 8.9 have no such type: moved
into a float16, whose exponent has a bias of 15 instead of 7, they are the value divided by 256.
Subnormal values come out right. Every value is exact in all types of activations.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from infopt.kernels.triton_ops import products
from infopt.kernels.triton_ops.common import check


@triton.jit
def float8_to_float32(bits):
    """Convert e4m3 values, given as uint8; the two codes for NaN become 480."""
    wide = bits.to(tl.uint16)
    half = ((wide & 0x80) << 8) | ((wide & 0x7F) << 7)
    return half.to(tl.uint16).to(tl.float16, bitcast=True).to(tl.float32) * 256.0


@triton.jit
def fp8_linear_kernel(
    x,
    weight,
    scale,
    bias,
    out,
    num_rows,
    num_outputs,
    num_inputs,
    x_stride,
    HAS_BIAS: tl.constexpr,
    DOT: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
):
    """Compute one tile of outputs."""
    rows, outputs = products.tile_indices(BLOCK_M, BLOCK_N)
    summed = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
    for start in range(0, num_inputs, BLOCK_K):
        columns = start + tl.arange(0, BLOCK_K)
        part = products.load_rows(x, rows, num_rows, x_stride, columns, num_inputs)
        mask = (outputs < num_outputs)[:, None] & (columns < num_inputs)[None, :]
        bits = tl.load(
            weight + outputs[:, None] * num_inputs + columns[None, :], mask=mask, other=0
        )
        values = float8_to_float32(bits).to(DOT)
        summed = tl.dot(part.to(DOT), tl.trans(values), acc=summed, input_precision="ieee")
    factor = tl.load(scale + outputs, mask=outputs < num_outputs, other=0.0).to(tl.float32)
    products.store_product(
        summed * factor[None, :], bias, out, rows, outputs, num_rows, num_outputs, HAS_BIAS
    )


def fp8_linear(
    x: torch.Tensor, weight: torch.Tensor, scale: torch.Tensor, bias: torch.Tensor | None = None
) -> torch.Tensor:
    """Multiply with a float8 weight.

    Args:
        x: ``(num_rows, in_features)``; rows may be strided.
        weight: float8_e4m3fn ``(out_features, in_features)`` without NaN (not checked: that would
            wait for the device).
        scale: float32 or float16 ``(out_features,)``.
        bias: ``(out_features,)`` or None.

    Returns:
        ``(num_rows, out_features)`` in the type of ``x``.

    Raises:
        KernelArgumentError: For wrong shapes, types, layouts or devices.
    """
    check("weight", weight, (None, None), torch.float8_e4m3fn)
    num_outputs, num_inputs = weight.shape
    products.check_activations(x, num_inputs)
    products.check_weight(x, scale, (num_outputs,), bias, num_outputs, ("weight", weight))
    return products.launch_scaled(fp8_linear_kernel, x, weight.view(torch.uint8), scale, bias)
