"""What follows attention in a layer: one gated MLP, or a mixture of experts.

    dense    down(act(gate) * up),  gate, up = gate_up(x)
    sparse   experts(x, route(router(x))) + sigmoid(g) * shared(x)

The shared expert is a dense MLP that every token goes through; its gate g is a last row of the
router's product where the family has one, and without it the shared expert is added as it is.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from infopt.ops.experts import Experts, ExpertSpec
from infopt.ops.router import Routing

if TYPE_CHECKING:
    from infopt.ops.dispatch import OpSet
    from infopt.ops.linear import Linear


@dataclass(frozen=True, slots=True)
class DenseMlp:
    """Two products with a gated activation between them.

    Attributes:
        gate_up: ``hidden_size`` to gate and up, side by side.
        down: Back to ``hidden_size``.
    """

    gate_up: Linear
    down: Linear

    @property
    def linears(self) -> tuple[Linear, ...]:
        """Both products."""
        return (self.gate_up, self.down)

    def __call__(self, x: torch.Tensor, activation: str, ops: OpSet) -> torch.Tensor:
        """Return the MLP of each row, ``(num_tokens, hidden_size)``."""
        return self.down(ops.gated_activation(self.gate_up(x), activation))


@dataclass(frozen=True, slots=True)
class SparseMlp:
    """Experts, and who goes to which.

    Attributes:
        router: ``hidden_size`` to one logit per expert (and the gate of the shared expert).
        routing: How experts are chosen.
        bias: float32 ``(num_experts,)`` for the choice, or None.
        spec: The experts' products.
        experts: The same, ready to run.
        shared: The shared expert, or None.
        is_gated: Whether the router's last output gates the shared expert.
    """

    router: Linear
    routing: Routing
    bias: torch.Tensor | None
    spec: ExpertSpec
    experts: Experts
    shared: DenseMlp | None = None
    is_gated: bool = False

    @property
    def linears(self) -> tuple[Linear, ...]:
        """All products, whoever goes through them."""
        shared = () if self.shared is None else self.shared.linears
        return (self.router, *self.spec.gate_up, *self.spec.down, *shared)

    def __call__(
        self,
        x: torch.Tensor,
        activation: str,
        ops: OpSet,
        is_padding: torch.Tensor,
        chosen: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Send each row through its experts.

        Args:
            x: ``(num_tokens, hidden_size)``.
            activation: Of the shared expert.
            ops: What to call.
            is_padding: bool ``(num_tokens,)``: rows that go to no expert.
            chosen: int64 ``(num_tokens, top_k)``: filled with the experts of each row, -1 for
                padding, where somebody wants to know them.

        Returns:
            ``(num_tokens, hidden_size)``.
        """
        logits = self.router(x)
        ids, weights = ops.route(logits[:, : len(self.spec.down)], self.bias, self.routing)
        # Padding would read experts that nobody needs, and count as their load.
        ids = ids.masked_fill(is_padding.unsqueeze(1), -1)
        if chosen is not None:
            chosen.copy_(ids)
        y = self.experts(x, ids, weights)
        if self.shared is None:
            return y
        gate = logits[:, -1:] if self.is_gated else None
        return ops.add_shared(y, self.shared(x, activation, ops), gate)


Mlp = DenseMlp | SparseMlp
