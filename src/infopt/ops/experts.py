"""The experts of a mixture: each token goes through its own few, and their results are weighed.

    y[t] = sum over j of weights[t, j] * down(act(gate) * up),  gate, up = gate_up(x[t])
    with the products of expert ids[t, j]; choices with id -1 are left out

In float32 the bits of a token do not depend on other tokens: its results are added in the order of
its choices.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import torch

from infopt.ops import cpu, gpu
from infopt.ops.dispatch import Implementation, OpChoice

if TYPE_CHECKING:
    from infopt.ops.dispatch import OpSet
    from infopt.ops.linear import Linear


@dataclass(frozen=True, slots=True)
class ExpertSpec:
    """The experts of one layer.

    Attributes:
        gate_up: Per expert, ``hidden_size`` to gate and up, ``2 * intermediate_size``.
        down: Per expert, ``intermediate_size`` to ``hidden_size``.
        activation: ``silu`` or ``gelu_tanh``.
        dtype: Compute type.
    """

    gate_up: Sequence[Linear]
    down: Sequence[Linear]
    activation: str
    dtype: torch.dtype


class Experts(Protocol):
    """Experts that are ready to run."""

    choice: OpChoice

    def __call__(self, x: torch.Tensor, ids: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
        """Send each token through its experts.

        Args:
            x: ``(num_tokens, hidden_size)``.
            ids: int64 ``(num_tokens, k)``: experts of each token; -1 for none.
            weights: float32 ``(num_tokens, k)``; not read where the id is -1.

        Returns:
            ``(num_tokens, hidden_size)`` in the type of ``x``; zeros for a token without experts.

        Raises:
            IndexError: For an id that no expert has; not checked where that waits for a device.
        """
        ...


class OneByOneExperts:
    """The reference: one expert after the other.

    Args:
        spec: The experts.
        ops: For the activation.
        reason: Why nothing faster runs.
    """

    def __init__(self, spec: ExpertSpec, ops: OpSet, reason: str) -> None:
        """Keep the experts."""
        self.spec, self.choice = spec, OpChoice("reference", reason)
        self._activate = ops.gated_activation

    def __call__(self, x: torch.Tensor, ids: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
        """Run the experts that have tokens."""
        _check_ids(ids, len(self.spec.gate_up))
        results = x.new_zeros(*ids.shape, x.shape[1])
        for expert in ids.unique().tolist():
            if expert >= 0:
                rows, places = (ids == expert).nonzero(as_tuple=True)
                results[rows, places] = self._expert(expert, x[rows])
        total = torch.zeros(x.shape, dtype=torch.float32, device=x.device)
        for place in range(ids.shape[1]):
            weight = weights[:, place].masked_fill(ids[:, place] < 0, 0.0)
            total += weight.unsqueeze(1) * results[:, place].float()
        return total.to(x.dtype)

    def _expert(self, index: int, x: torch.Tensor) -> torch.Tensor:
        wide = self.spec.gate_up[index](x)
        return self.spec.down[index](self._activate(wide, self.spec.activation))


def _check_ids(ids: torch.Tensor, num_experts: int) -> None:
    wrong = ids[(ids < -1) | (ids >= num_experts)]
    if wrong.numel():
        raise IndexError(f"no expert {int(wrong[0])}, there are {num_experts}")


IMPLEMENTATIONS = [
    Implementation("cpu", cpu.load_experts, cpu.why_not),
    Implementation("triton", gpu.load_experts, gpu.why_not),
    Implementation("reference", lambda: _one_by_one),
]
"""Each loads a function ``(spec, ops) -> Experts``."""


def _one_by_one(spec: ExpertSpec, ops: OpSet) -> Experts:
    return OneByOneExperts(spec, ops, ops.choices["experts"].reason)
