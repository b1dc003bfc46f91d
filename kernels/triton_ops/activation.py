"""Gated activation of the MLP, ``act(gate) * up`` (SwiGLU / GeGLU, arXiv 2002.05202).

The reference is :func:`infopt.ops.activation.gated_activation`. Computed in float32 and rounded
once. The tanh form of GELU is written as ``x * sigmoid(2 u)``, the same function without the
cancellation of ``1 + tanh(u)``.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from infopt.kernels.triton_ops.common import (
    FLOAT_DTYPES,
    check,
    check_rows_contiguous,
    refuse,
    round_to,
)

KINDS = ("silu", "gelu_tanh")
BLOCK = 1024
"""Values per program."""


@triton.jit
def gated_activation_kernel(
    gate_up, out, size, stride, KIND: tl.constexpr, BLOCK_SIZE: tl.constexpr
):
    """Compute ``BLOCK_SIZE`` outputs of row ``program_id(0)``."""
    row = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * BLOCK_SIZE + tl.arange(0, BLOCK_SIZE)
    inside = columns < size
    source = gate_up + row * stride + columns
    gate = tl.load(source, mask=inside, other=0.0).to(tl.float32)
    up = tl.load(source + size, mask=inside, other=0.0).to(tl.float32)
    inner = gate
    if KIND == "gelu_tanh":
        # 2 * sqrt(2 / pi) * (x + 0.044715 x^3)
        inner = 1.5957691216057308 * gate * (1.0 + 0.044715 * gate * gate)
    result = gate / (1.0 + tl.exp(-inner)) * up
    tl.store(out + row * size + columns, round_to(result, out.dtype.element_ty), mask=inside)


def gated_activation(gate_up: torch.Tensor, kind: str) -> torch.Tensor:
    """Activate the first half and multiply with the second.

    Args:
        gate_up: ``(num_tokens, 2 * intermediate_size)``, gate first; rows may be strided.
        kind: ``silu`` or ``gelu_tanh``.

    Returns:
        ``(num_tokens, intermediate_size)``.

    Raises:
        KernelArgumentError: For wrong shapes, types, layouts, devices or an unknown kind.
    """
    check("gate_up", gate_up, (None, None), FLOAT_DTYPES)
    check_rows_contiguous("gate_up", gate_up)
    if gate_up.shape[1] % 2:
        refuse("gate_up", gate_up.shape[1], f"must have an even width, got {gate_up.shape[1]}")
    if kind not in KINDS:
        refuse("kind", kind, f"must be {' or '.join(KINDS)}, got {kind!r}")
    num_rows, size = gate_up.shape[0], gate_up.shape[1] // 2
    out = torch.empty((num_rows, size), dtype=gate_up.dtype, device=gate_up.device)
    if out.numel():
        grid = (num_rows, triton.cdiv(size, BLOCK))
        gated_activation_kernel[grid](
            gate_up, out, size, gate_up.stride(0), KIND=kind, BLOCK_SIZE=BLOCK, num_warps=4
        )
    return out
