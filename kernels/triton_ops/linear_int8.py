"""Product with int8 weights, one scale per output: ``y = (x C^T) * scale + b``.

The codes are exact in every type of activations (8 bits fit the mantissa of bfloat16), so the
weight adds no error beyond its own quantization.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from infopt.kernels.triton_ops import products
from infopt.kernels.triton_ops.common import check


@triton.jit
def int8_linear_kernel(
    x,
    codes,
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
        weight = tl.load(
            codes + outputs[:, None] * num_inputs + columns[None, :], mask=mask, other=0
        )
        summed = tl.dot(part.to(DOT), tl.trans(weight.to(DOT)), acc=summed, input_precision="ieee")
    factor = tl.load(scale + outputs, mask=outputs < num_outputs, other=0.0).to(tl.float32)
    products.store_product(
        summed * factor[None, :], bias, out, rows, outputs, num_rows, num_outputs, HAS_BIAS
    )


def int8_linear(
    x: torch.Tensor, codes: torch.Tensor, scale: torch.Tensor, bias: torch.Tensor | None = None
) -> torch.Tensor:
    """Multiply with an int8 weight.

    Args:
        x: ``(num_rows, in_features)``; rows may be strided.
        codes: int8 ``(out_features, in_features)``.
        scale: float32 or float16 ``(out_features,)``.
        bias: ``(out_features,)`` or None.

    Returns:
        ``(num_rows, out_features)`` in the type of ``x``.

    Raises:
        KernelArgumentError: For wrong shapes, types, layouts or devices.
    """
    check("codes", codes, (None, None), torch.int8)
    num_outputs, num_inputs = codes.shape
    products.check_activations(x, num_inputs)
    products.check_weight(x, scale, (num_outputs,), bias, num_outputs, ("codes", codes))
    return products.launch_scaled(int8_linear_kernel, x, codes, scale, bias)
