"""Products of each token with the weights of its experts, all experts in one launch.

Slots (token, choice) are sorted by expert; a row block holds slots of one expert only. How many
blocks an expert needs is known on the device alone, so as many are launched as could be needed and
those without work return. Nothing waits for the device.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from infopt.kernels.triton_ops import products
from infopt.kernels.triton_ops.common import check, check_contiguous, dot_type, refuse, round_to


@dataclass(frozen=True, slots=True)
class ExpertBlocks:
    """Slots in the order of the row blocks.

    Attributes:
        slots: int32 ``(num_blocks * rows,)``: index into the flattened ``(num_tokens, k)`` choices;
            ``num_tokens * k`` where a block has an empty row.
        expert: int32 ``(num_blocks,)``; -1 for a block without work.
        rows: Rows of a block.
        k: Experts per token.
    """

    slots: torch.Tensor
    expert: torch.Tensor
    rows: int
    k: int


@triton.jit
def grouped_linear_kernel(
    x,
    weight,
    slots,
    expert,
    slot_weight,
    out,
    num_slots,
    num_outputs,
    num_inputs,
    x_stride,
    SLOTS_PER_ROW: tl.constexpr,
    HAS_SLOT_WEIGHT: tl.constexpr,
    DOT: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
):
    """Compute a tile of outputs for the slots of row block ``program_id(0)``."""
    block = tl.program_id(0)
    chosen = tl.load(expert + block).to(tl.int64)
    if chosen >= 0:
        slot = tl.load(slots + block * BLOCK_M + tl.arange(0, BLOCK_M)).to(tl.int64)
        valid = slot < num_slots
        row = slot // SLOTS_PER_ROW
        outputs = (tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)).to(tl.int64)
        inside_n = outputs < num_outputs
        own = weight + chosen * num_outputs * num_inputs
        summed = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
        for start in range(0, num_inputs, BLOCK_K):
            columns = start + tl.arange(0, BLOCK_K)
            inside_k = columns < num_inputs
            part = tl.load(
                x + row[:, None] * x_stride + columns[None, :],
                mask=valid[:, None] & inside_k[None, :],
                other=0.0,
            )
            tile = tl.load(
                own + outputs[:, None] * num_inputs + columns[None, :],
                mask=inside_n[:, None] & inside_k[None, :],
                other=0.0,
            )
            summed = tl.dot(
                part.to(DOT), tl.trans(tile.to(DOT)), acc=summed, input_precision="ieee"
            )
        if HAS_SLOT_WEIGHT:
            summed *= tl.load(slot_weight + slot, mask=valid, other=0.0)[:, None]
        target = out + slot[:, None] * num_outputs + outputs[None, :]
        mask = valid[:, None] & inside_n[None, :]
        tl.store(target, round_to(summed, out.dtype.element_ty), mask=mask)


def plan_experts(ids: torch.Tensor, num_experts: int, rows: int) -> ExpertBlocks:
    """Sort slots by expert into row blocks, on the device.

    Args:
        ids: int32 ``(num_tokens, k)``, below ``num_experts`` (not checked: that would wait).
        num_experts: Experts.
        rows: Rows of a block.

    Raises:
        KernelArgumentError: For wrong shapes, types or devices.
    """
    check("ids", ids, (None, None), torch.int32)
    flat = ids.flatten().long()
    num_slots = flat.shape[0]
    num_blocks = min(num_slots, num_slots // rows + num_experts)
    zeros = torch.zeros(num_experts, dtype=torch.int64, device=ids.device)
    counts = zeros.scatter_add(0, flat, torch.ones_like(flat))
    padded = (counts + rows - 1) // rows * rows
    ends = padded.cumsum(0)
    order = flat.argsort(stable=True)
    by_expert = flat[order]
    first_of_expert = counts.cumsum(0) - counts
    rank = torch.arange(num_slots, device=ids.device) - first_of_expert[by_expert]
    slots = torch.full((num_blocks * rows,), num_slots, dtype=torch.int32, device=ids.device)
    slots[(ends - padded)[by_expert] + rank] = order.int()
    starts = torch.arange(num_blocks, device=ids.device) * rows
    expert = torch.searchsorted(ends, starts, right=True)
    expert = torch.where(expert < num_experts, expert, -1)
    return ExpertBlocks(slots, expert.int(), rows, ids.shape[1])


def block_rows(dtype: torch.dtype, num_slots: int, num_experts: int) -> int:
    """Return rows per block: few where experts get few tokens each. Float32 has one size."""
    if dtype == torch.float32 or num_slots <= 16 * num_experts:
        return 16
    return 64


def grouped_linear(
    x: torch.Tensor,
    weight: torch.Tensor,
    blocks: ExpertBlocks,
    slot_weight: torch.Tensor | None = None,
    *,
    per_slot: bool = False,
) -> torch.Tensor:
    """Multiply the row of each slot with the weight of its expert.

    Args:
        x: ``(num_tokens, in_features)``, or ``(num_tokens * k, in_features)`` with ``per_slot``;
            rows may be strided.
        weight: ``(num_experts, out_features, in_features)`` in the type of ``x``.
        blocks: From :func:`plan_experts`.
        slot_weight: float32 ``(num_tokens * k,)`` factors on the results, or None.
        per_slot: Rows of ``x`` belong to slots, not to tokens.

    Returns:
        ``(num_tokens * k, out_features)``, by slot.

    Raises:
        KernelArgumentError: For wrong shapes, types, layouts or devices.
    """
    check("weight", weight, (None, None, None), x.dtype)
    check_contiguous("weight", weight)
    _, num_outputs, num_inputs = weight.shape
    products.check_activations(x, num_inputs)
    if weight.device != x.device:
        refuse("weight", weight.device, f"must be on {x.device}, got {weight.device}")
    slots_per_row = 1 if per_slot else blocks.k
    num_slots = x.shape[0] * slots_per_row
    if slot_weight is not None:
        check("slot_weight", slot_weight, (num_slots,), torch.float32, like=x)
        check_contiguous("slot_weight", slot_weight)
    out = torch.empty((num_slots, num_outputs), dtype=x.dtype, device=x.device)
    if out.numel() == 0:
        return out
    wide = x.dtype != torch.float32 and blocks.rows > 16
    block_n = 128 if wide else 64
    grid = (blocks.expert.shape[0], triton.cdiv(num_outputs, block_n))
    grouped_linear_kernel[grid](
        x,
        weight,
        blocks.slots,
        blocks.expert,
        out if slot_weight is None else slot_weight,
        out,
        num_slots,
        num_outputs,
        num_inputs,
        x.stride(0),
        SLOTS_PER_ROW=slots_per_row,
        HAS_SLOT_WEIGHT=slot_weight is not None,
        DOT=dot_type(x.dtype),
        BLOCK_M=blocks.rows,
        BLOCK_N=block_n,
        BLOCK_K=32 if x.dtype == torch.float32 else 64,
        num_warps=8 if wide else 4,
        num_stages=3,
    )
    return out
