"""Runs a draft head on the ops of the model, for all outputs at once."""

from __future__ import annotations

import torch

from infopt.models.decoder import Decoder
from infopt.ops.linear import Linear
from infopt.ops.mlp import DenseMlp
from infopt.speculative.head.weights import HeadConfig, HeadWeights


class HeadNetwork:
    """The head beside its model.

    Args:
        config: Sizes.
        weights: Tensors.
        model: The model: its embedding, ops, device and type.
    """

    def __init__(self, config: HeadConfig, weights: HeadWeights, model: Decoder) -> None:
        """Prepare the products once."""
        self._model, self._eps, ops = model, config.eps, model.ops

        def product(weight: torch.Tensor) -> Linear:
            return ops.linear(weight.to(model.device, model.dtype), None)

        def norm(weight: torch.Tensor) -> torch.Tensor:
            return weight.to(model.device, torch.float32)

        self._input, self._head = product(weights.input), product(weights.vocabulary)
        self._mlp = DenseMlp(product(weights.gate_up), product(weights.down))
        self._norms = [
            norm(x) for x in (weights.embedding_norm, weights.mlp_norm, weights.output_norm)
        ]

    @property
    def weight_bytes(self) -> int:
        """Bytes read per guess."""
        linears = (self._input, self._head, *self._mlp.linears)
        return sum(linear.num_bytes for linear in linears)

    def step(self, hidden: torch.Tensor, token_ids: list[int]) -> tuple[torch.Tensor, torch.Tensor]:
        """Guess what follows a token.

        Args:
            hidden: States before the tokens, ``(num_rows, hidden_size)``: the model's, or those of
                the last step.
            token_ids: The tokens, one per row.

        Returns:
            Logits over the head's tokens, float32 ``(num_rows, num_draft_tokens)``, and the states
            after the tokens.
        """
        model, ops = self._model, self._model.ops
        ids = torch.tensor(token_ids, device=model.device)
        embedded = model.embedding(ids)
        normed, _ = ops.add_rms_norm(embedded, None, self._norms[0], self._eps)
        mixed = self._input(torch.cat((normed, hidden), dim=1))
        normed, mixed = ops.add_rms_norm(mixed, None, self._norms[1], self._eps)
        grown = self._mlp(normed, "silu", ops)
        state, _ = ops.add_rms_norm(grown, mixed, self._norms[2], self._eps)
        return self._head(state).float(), state
