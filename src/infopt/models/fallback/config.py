"""`TransformersConfig`: what the engine needs to know of a model that transformers runs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from infopt.errors import CheckpointError


@dataclass(frozen=True, slots=True)
class TransformersConfig:
    """A model that runs through transformers, as plain data.

    Attributes:
        family: transformers' ``model_type`` of the text decoder.
        vocab_size: Rows of the embedding (may be padded above the tokenizer's entries).
        num_real_tokens: Ids at or above this are padding: they are never sampled.
        hidden_size: Width of the residual stream.
        num_layers: Layers of the decoder.
        max_position_embeddings: Longest sequence the model was made for.
        bos_token_id, eos_token_ids: Special ids from the checkpoint.
        num_experts: Routed experts per sparse layer (0: dense).
        top_k: Experts that a token goes to.
        num_parameters: Weights, a tied head counted once.
        num_active_parameters: Weights that belong to one token, the whole embedding included.
    """

    family: str
    vocab_size: int
    num_real_tokens: int
    hidden_size: int
    num_layers: int
    max_position_embeddings: int
    bos_token_id: int | None = None
    eos_token_ids: tuple[int, ...] = ()
    num_experts: int = 0
    top_k: int = 0
    num_parameters: int = 0
    num_active_parameters: int = 0

    @property
    def moe(self) -> None:
        """None: experts run inside transformers, so the engine sees none of their routing."""
        return None


def read_config(
    text: Any, generation: Mapping[str, Any] | None, num_real_tokens: int | None
) -> TransformersConfig:
    """Translate transformers' configuration of a text decoder.

    Args:
        text: A ``PreTrainedConfig``.
        generation: Content of ``generation_config.json``, whose eos ids take precedence.
        num_real_tokens: Entries of the tokenizer; None if there is none.

    Raises:
        CheckpointError: If the configuration names no longest sequence.
    """
    longest = getattr(text, "max_position_embeddings", None)
    if not isinstance(longest, int):
        raise CheckpointError(
            f"config.json of this {text.model_type} model names no longest sequence.",
            field="max_position_embeddings",
            value=longest,
            remedy="Add max_position_embeddings to config.json.",
        )
    eos = (generation or {}).get("eos_token_id")
    return TransformersConfig(
        family=text.model_type,
        vocab_size=text.vocab_size,
        num_real_tokens=min(num_real_tokens or text.vocab_size, text.vocab_size),
        hidden_size=text.hidden_size,
        num_layers=text.num_hidden_layers,
        max_position_embeddings=longest,
        bos_token_id=getattr(text, "bos_token_id", None),
        eos_token_ids=_ids(eos) or _ids(getattr(text, "eos_token_id", None)),
        num_experts=_first(text, ("num_local_experts", "n_routed_experts", "num_experts")),
        top_k=_first(text, ("num_experts_per_tok", "top_k_experts", "moe_top_k")),
    )


def _ids(value: int | list[int] | None) -> tuple[int, ...]:
    if value is None:
        return ()
    return tuple(value) if isinstance(value, list | tuple) else (value,)


def _first(config: Any, names: tuple[str, ...]) -> int:
    for name in names:
        value = getattr(config, name, None)
        if isinstance(value, int):
            return value
    return 0
