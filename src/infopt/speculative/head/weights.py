"""What a draft head is made of, as plain data."""

from __future__ import annotations

from dataclasses import dataclass, fields

import torch

from infopt.errors import CheckpointError


@dataclass(frozen=True, slots=True)
class HeadConfig:
    """Sizes of a draft head, and the model it was trained for.

    Attributes:
        hidden_size: Width of the model's hidden states.
        intermediate_size: Width inside the MLP.
        num_draft_tokens: Tokens it can guess.
        vocab_size: Ids of the model.
        eps: Of the norms.
        model_identity: Identity of the model's weights.
    """

    hidden_size: int
    intermediate_size: int
    num_draft_tokens: int
    vocab_size: int
    eps: float
    model_identity: str


@dataclass(frozen=True, slots=True)
class HeadWeights:
    """Tensors of a draft head.

    Attributes:
        embedding_norm: ``(hidden_size,)``.
        input: ``(hidden_size, 2 * hidden_size)``: embedding first, hidden state second.
        mlp_norm: ``(hidden_size,)``.
        gate_up: ``(2 * intermediate_size, hidden_size)``.
        down: ``(hidden_size, intermediate_size)``.
        output_norm: ``(hidden_size,)``.
        token_ids: The model's id of each token it guesses, ascending, int64.
        vocabulary: ``(num_draft_tokens, hidden_size)``.
    """

    embedding_norm: torch.Tensor
    input: torch.Tensor
    mlp_norm: torch.Tensor
    gate_up: torch.Tensor
    down: torch.Tensor
    output_norm: torch.Tensor
    token_ids: torch.Tensor
    vocabulary: torch.Tensor

    def to_dict(self) -> dict[str, torch.Tensor]:
        """Return the tensors by name."""
        return {field.name: getattr(self, field.name) for field in fields(self)}

    def check(self, config: HeadConfig) -> None:
        """Refuse tensors that do not have the sizes of a config.

        Raises:
            CheckpointError: Names the first that differs.
        """
        shapes = shapes_of(config)
        for name, tensor in self.to_dict().items():
            if tuple(tensor.shape) != shapes[name]:
                raise CheckpointError(
                    f"draft head: {name} has the shape {tuple(tensor.shape)}, not {shapes[name]}.",
                    field=name,
                    value=tuple(tensor.shape),
                )
        ids = self.token_ids
        if (
            bool((ids[1:] <= ids[:-1]).any())
            or int(ids[0]) < 0
            or int(ids[-1]) >= config.vocab_size
        ):
            raise CheckpointError(
                f"draft head: token_ids must ascend within 0 .. {config.vocab_size - 1}.",
                field="token_ids",
            )


def shapes_of(config: HeadConfig) -> dict[str, tuple[int, ...]]:
    """Return the shape of each tensor."""
    width, inner, count = config.hidden_size, config.intermediate_size, config.num_draft_tokens
    return {
        "embedding_norm": (width,),
        "input": (width, 2 * width),
        "mlp_norm": (width,),
        "gate_up": (2 * inner, width),
        "down": (width, inner),
        "output_norm": (width,),
        "token_ids": (count,),
        "vocabulary": (count, width),
    }
