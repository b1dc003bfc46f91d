"""Gated activation of the MLP: ``act(gate) * up`` (SwiGLU / GeGLU, arXiv 2002.05202)."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from infopt.ops import cpu, gpu
from infopt.ops.dispatch import Implementation


def gated_activation(gate_up: torch.Tensor, kind: str) -> torch.Tensor:
    """Activate the first half and multiply with the second.

    Args:
        gate_up: ``(num_tokens, 2 * intermediate_size)``, gate first.
        kind: ``silu`` or ``gelu_tanh``.

    Returns:
        ``(num_tokens, intermediate_size)``.
    """
    gate, up = gate_up.chunk(2, dim=-1)
    activated = F.silu(gate) if kind == "silu" else F.gelu(gate, approximate="tanh")
    return activated.mul_(up)


IMPLEMENTATIONS = [
    Implementation("cpu", cpu.load_gated_activation, cpu.why_not),
    Implementation("triton", gpu.load_gated_activation, gpu.why_not),
    Implementation("reference", lambda: gated_activation),
]
