"""What each model of the tiny family is, and how it is trained: data, no code."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Literal

from infopt.errors import ConfigError, nearest

VOCAB_SIZE = 1024
"""Small, so that few parameters sit in the embedding and a token is seen often."""

MAX_POSITIONS = 1024
"""Longest context in tokens that a model is trained on."""

LEARNED_SHARE = 0.65
"""A model counts as learned if its held-out perplexity is at most this share of the bigram's."""


@dataclass(frozen=True, slots=True)
class Recipe:
    """One model and its training.

    Attributes:
        name: Its slug.
        model_type: Architecture, as in ``config.json``.
        architecture: Fields of ``config.json`` that differ from what the family shares.
        num_steps: Updates of the weights.
        tokens_per_step: Tokens in a batch.
        context: Tokens per window in the first part of the training.
        long_context: Tokens per window in the last part.
        long_share: Share of the steps in the last part.
        warmup_share: Share of the steps in which the rate rises from 0.
        decay_share: Share of the steps, at the end, in which it falls to 0.
        matrix_rate: Learning rate of the hidden matrices (Muon).
        vector_rate: Learning rate of embedding, norms and routers (AdamW).
        weight_decay: Decoupled decay of the hidden matrices, per unit of learning rate.
        balance_weight: Weight of the loss that spreads tokens evenly over experts.
        z_weight: Weight of the loss that keeps router logits small.
    """

    name: str
    model_type: Literal["llama", "qwen2_moe"]
    architecture: Mapping[str, Any] = field(default_factory=dict)
    num_steps: int = 1200
    tokens_per_step: int = 4096
    context: int = 256
    long_context: int = MAX_POSITIONS
    long_share: float = 0.2
    warmup_share: float = 0.02
    decay_share: float = 0.5
    matrix_rate: float = 0.02
    vector_rate: float = 3e-3
    weight_decay: float = 0.1
    balance_weight: float = 0.01
    z_weight: float = 0.001

    def to_dict(self) -> dict[str, Any]:
        """Return plain data for a record."""
        values = {name: getattr(self, name) for name in self.__slots__}
        return {**values, "architecture": dict(self.architecture)}


_DENSE: Mapping[str, Any] = MappingProxyType(
    {
        "hidden_size": 256,
        "intermediate_size": 384,
        "num_hidden_layers": 4,
        "num_attention_heads": 8,
        "num_key_value_heads": 2,
    }
)

# Every second layer has experts. A token reads its shared expert and two of eight: 128 + 2 * 128
# columns, as many as a dense layer has, so that active parameters are equal.
_MOE: Mapping[str, Any] = MappingProxyType(
    {
        **_DENSE,
        "decoder_sparse_step": 2,
        "num_experts": 8,
        "num_experts_per_tok": 2,
        "norm_topk_prob": True,
        "moe_intermediate_size": 128,
        "shared_expert_intermediate_size": 128,
        "qkv_bias": False,
    }
)

_DRAFT: Mapping[str, Any] = MappingProxyType(
    {
        "hidden_size": 128,
        "intermediate_size": 256,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
    }
)

RECIPES: Mapping[str, Recipe] = MappingProxyType(
    {
        recipe.name: recipe
        for recipe in (
            Recipe("tiny-dense", "llama", _DENSE),
            Recipe("tiny-draft", "llama", _DRAFT, num_steps=2000),
            Recipe("tiny-moe", "qwen2_moe", _MOE),
        )
    }
)


def recipe_of(name: str) -> Recipe:
    """Return the recipe of a model.

    Raises:
        ConfigError: If there is none of that name; the message has the nearest one.
    """
    if name not in RECIPES:
        raise ConfigError(
            f"There is no recipe for {name!r}.{nearest(name, RECIPES)}",
            field="name",
            value=name,
            remedy=f"Choose one of: {', '.join(RECIPES)}.",
        )
    return RECIPES[name]
