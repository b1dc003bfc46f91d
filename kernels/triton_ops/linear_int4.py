"""Product with 4-bit weights in groups: ``W[o, i] = scale[g, o] * code[o, i] + offset[g, o]``.

Two codes share a byte: byte j of a group holds code j in its low half and code ``group_size / 2 +
j`` in its high half. So both halves of a byte multiply with contiguous activations, and nothing has
to be interleaved in registers. Weights are computed in float32 and rounded to the type of the
activations.
"""

from __future__ import annotations

from dataclasses import replace

import torch
import torch.nn.functional as F
import triton
import triton.language as tl

from infopt.kernels.triton_ops import products
from infopt.kernels.triton_ops.common import check, check_contiguous, dot_type, refuse, round_to

GROUP_SIZES = (32, 64, 128, 256)


@triton.jit
def int4_linear_kernel(
    x,
    packed,
    scale,
    offset,
    bias,
    out,
    num_rows,
    num_outputs,
    num_inputs,
    num_groups,
    x_stride,
    HAS_BIAS: tl.constexpr,
    DOT: tl.constexpr,
    GROUP: tl.constexpr,
    GROUPS_PER_STEP: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
):
    """Compute one tile of outputs, group by group."""
    HALF: tl.constexpr = GROUP // 2
    rows, outputs = products.tile_indices(BLOCK_M, BLOCK_N)
    valid = outputs < num_outputs
    half = tl.arange(0, HALF)
    summed = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
    for first in range(0, num_groups, GROUPS_PER_STEP):
        for step in tl.static_range(GROUPS_PER_STEP):
            group = first + step
            # Beyond the last group the activations are 0, so any group's weights will do.
            stored = tl.minimum(group, num_groups - 1)
            at = packed + (outputs * num_groups + stored)[:, None] * HALF + half[None, :]
            codes = tl.load(at, mask=valid[:, None], other=0).to(tl.int32)
            d = tl.load(scale + stored * num_outputs + outputs, mask=valid, other=0.0)
            m = tl.load(offset + stored * num_outputs + outputs, mask=valid, other=0.0)
            d, m = d.to(tl.float32)[:, None], m.to(tl.float32)[:, None]
            low = round_to((codes & 15).to(tl.float32) * d + m, x.dtype.element_ty)
            high = round_to((codes >> 4).to(tl.float32) * d + m, x.dtype.element_ty)
            columns = group * GROUP + half
            part = products.load_rows(x, rows, num_rows, x_stride, columns, num_inputs)
            summed = tl.dot(part.to(DOT), tl.trans(low.to(DOT)), acc=summed, input_precision="ieee")
            part = products.load_rows(x, rows, num_rows, x_stride, columns + HALF, num_inputs)
            summed = tl.dot(
                part.to(DOT), tl.trans(high.to(DOT)), acc=summed, input_precision="ieee"
            )
    products.store_product(summed, bias, out, rows, outputs, num_rows, num_outputs, HAS_BIAS)


def pack_int4(codes: torch.Tensor, group_size: int) -> torch.Tensor:
    """Pack 4-bit codes two to a byte in the order that the kernel reads.

    Args:
        codes: uint8 ``(out_features, in_features)``, below 16.
        group_size: 32, 64, 128 or 256.

    Returns:
        uint8 ``(out_features, num_groups, group_size / 2)``; a last group that is not full is
        filled with zeros.

    Raises:
        KernelArgumentError: For other types, codes or group sizes.
    """
    if group_size not in GROUP_SIZES:
        refuse("group_size", group_size, f"must be one of {GROUP_SIZES}, got {group_size}")
    if codes.dtype != torch.uint8 or codes.ndim != 2:
        refuse("codes", codes.dtype, f"must be a uint8 matrix, got {codes.dtype} {codes.ndim}-d")
    if codes.numel() and int(codes.max()) > 15:
        refuse("codes", int(codes.max()), f"must be below 16, got {int(codes.max())}")
    full = F.pad(codes, (0, -codes.shape[1] % group_size))
    low, high = full.view(codes.shape[0], -1, 2, group_size // 2).unbind(2)
    return (low | (high << 4)).contiguous()


def int4_linear(
    x: torch.Tensor,
    packed: torch.Tensor,
    scale: torch.Tensor,
    offset: torch.Tensor,
    bias: torch.Tensor | None = None,
) -> torch.Tensor:
    """Multiply with a 4-bit weight.

    Args:
        x: ``(num_rows, in_features)``; rows may be strided. ``in_features`` may end within the
            last group.
        packed: uint8 ``(out_features, num_groups, group_size / 2)`` from :func:`pack_int4`.
        scale: float16 or float32 ``(num_groups, out_features)``.
        offset: Same shape and type.
        bias: ``(out_features,)`` or None.

    Returns:
        ``(num_rows, out_features)`` in the type of ``x``.

    Raises:
        KernelArgumentError: For wrong shapes, types, layouts or devices.
    """
    check("packed", packed, (None, None, None), torch.uint8)
    num_outputs, num_groups, half = packed.shape
    if 2 * half not in GROUP_SIZES:
        refuse("packed", 2 * half, f"must have groups of {GROUP_SIZES}, got {2 * half}")
    num_inputs = x.shape[-1]
    if not (num_groups - 1) * 2 * half < num_inputs <= num_groups * 2 * half:
        what = f"must end in the last of {num_groups} groups of {2 * half}, got {num_inputs}"
        refuse("x", num_inputs, what)
    products.check_activations(x, num_inputs)
    shape = (num_groups, num_outputs)
    products.check_weight(x, scale, shape, bias, num_outputs, ("packed", packed))
    check("offset", offset, shape, scale.dtype, like=x)
    check_contiguous("offset", offset)
    out = torch.empty((x.shape[0], num_outputs), dtype=x.dtype, device=x.device)
    if out.numel():
        _launch(x, packed, scale, offset, bias, out)
    return out


def block_shape(dtype: torch.dtype, num_rows: int) -> products.ProductShape:
    """Return the tile; half as many outputs as other formats, since codes unpack in registers."""
    shape = products.product_shape(dtype, num_rows)
    if dtype == torch.float32 or num_rows <= products.FEW_ROWS:
        return shape
    return replace(shape, outputs=64)


def _launch(x, packed, scale, offset, bias, out) -> None:
    num_outputs, num_groups, half = packed.shape
    shape = block_shape(x.dtype, x.shape[0])
    int4_linear_kernel[products.grid(x.shape[0], num_outputs, shape)](
        x,
        packed,
        scale,
        offset,
        scale if bias is None else bias,
        out,
        x.shape[0],
        num_outputs,
        x.shape[1],
        num_groups,
        x.stride(0),
        HAS_BIAS=bias is not None,
        DOT=dot_type(x.dtype),
        GROUP=2 * half,
        GROUPS_PER_STEP=max(shape.inputs // (2 * half), 1),
        BLOCK_M=shape.rows,
        BLOCK_N=shape.outputs,
        num_warps=shape.num_warps,
        num_stages=shape.num_stages,
    )
