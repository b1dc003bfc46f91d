"""The sum of routed experts and the shared expert, which every token goes through.

out = y + sigmoid(gate) * shared
out = y + shared                     where there is no gate

The gate is one value per token.
"""

from __future__ import annotations

import torch

from infopt.ops import cpu
from infopt.ops.dispatch import Implementation
from infopt.ops.router import sigmoid


def add_shared(y: torch.Tensor, shared: torch.Tensor, gate: torch.Tensor | None) -> torch.Tensor:
    """Add what the shared expert returns.

    Args:
        y: ``(num_tokens, hidden_size)``: sum of the routed experts.
        shared: The same of the shared expert.
        gate: ``(num_tokens, 1)`` before the sigmoid, or None.

    Returns:
        ``(num_tokens, hidden_size)`` in the type of ``y``. The bits of a row depend on it alone.
    """
    if gate is not None:
        shared = (sigmoid(gate.float()) * shared.float()).to(shared.dtype)
    return y + shared


IMPLEMENTATIONS = [
    Implementation("cpu", cpu.load_add_shared, cpu.why_not),
    Implementation("reference", lambda: add_shared),
]
