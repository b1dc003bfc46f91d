"""Does a row of float32 keep its bits in any batch on this device?"""

from __future__ import annotations

from typing import Any

import torch

from infopt.bench.gpu.budget import Budget
from infopt.bench.gpu.case import LLAMA_8B, TINY, Sizes
from infopt.bench.gpu.decoder_cases import paged_batch
from infopt.kernels.triton_ops import linear_int8
from infopt.kernels.triton_ops.common import is_interpreted
from infopt.ops import gpu
from infopt.ops.context import ForwardContext, GroupContext, KVPages


def invariance_section(device: torch.device, budget: Budget) -> dict[str, Any]:
    """Compare rows alone with the same rows in a batch, bit by bit.

    Returns:
        Name of the op -> whether all bits are equal.
    """
    sizes = LLAMA_8B if device.type == "cuda" else TINY
    checks = {
        "attention: decode and chunk": _attention_rows,
        "linear_int8: rows alone and together": _linear_rows,
        "add_rms_norm: rows alone and together": _norm_rows,
    }
    found: dict[str, Any] = {
        name: "skipped: no time" if budget.is_spent else check(sizes, device)
        for name, check in checks.items()
    }
    if is_interpreted():
        found["note"] = "the interpreter multiplies by numpy, which makes no such promise"
    return found


def _attention_rows(sizes: Sizes, device: torch.device) -> bool:
    length = min(sizes.context, 700)
    q, pages, ctx = paged_batch(sizes, device, torch.float32, [length], length)
    op, group = gpu.load_attention(), ctx.groups[0]
    whole = op(q, pages, ctx, group, 0.1)
    return all(
        torch.equal(_decode(op, q, pages, group, row), whole[row : row + 1])
        for row in (0, length // 2, length - 1)
    )


def _decode(op: Any, q: torch.Tensor, pages: KVPages, group: GroupContext, row: int) -> Any:
    positions = torch.tensor([row], device=q.device)
    ctx = ForwardContext(positions, positions, [0, 1], [row + 1], 1, [group], positions)
    return op(q[row : row + 1].contiguous(), pages, ctx, group, 0.1)


def _linear_rows(sizes: Sizes, device: torch.device) -> bool:
    x = torch.randn(40, sizes.hidden, device=device)
    shape = (sizes.intermediate, sizes.hidden)
    codes = torch.randint(-127, 128, shape, dtype=torch.int8, device=device)
    scale = torch.rand(sizes.intermediate, device=device)
    whole = linear_int8.int8_linear(x, codes, scale)
    parts = (slice(0, 1), slice(17, 18), slice(5, 25))
    return all(torch.equal(linear_int8.int8_linear(x[p], codes, scale), whole[p]) for p in parts)


def _norm_rows(sizes: Sizes, device: torch.device) -> bool:
    x, weight = torch.randn(9, sizes.hidden, device=device), torch.rand(sizes.hidden, device=device)
    op = gpu.load_add_rms_norm()
    whole = op(x, x, weight, 1e-6)[0]
    return torch.equal(op(x[4:5], x[4:5], weight, 1e-6)[0], whole[4:5])
