"""What a step must read and compute: its bytes and FLOPs, counted.

A step's bytes are those that any implementation has to move: each weight once (of the experts of a
mixture those that its tokens are expected to touch), the embedding rows of its tokens, the KV rows
it reads and writes. Activations are left out; they stay in caches at the sizes of a step. Its FLOPs
are two per weight and token plus four per attention pair and query channel. The same formulas give
the published figures: 2 * N * T + 2 * L * d * T^2 FLOPs for a causal prefill, W + n * kv bytes for
a decode.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from infopt.engine.stats import StepStats
from infopt.models.config import ModelConfig
from infopt.models.fallback.config import TransformersConfig


@dataclass(frozen=True, slots=True)
class Precision:
    """Bytes per stored value; fractions are fine (int4 in groups of 64 with scales: 0.53).

    Attributes:
        weight_bytes: Linear layers.
        kv_bytes: Keys and values.
        embedding_bytes: Embedding table; default is ``weight_bytes``.
        head_bytes: Output head; default is ``embedding_bytes``.
        old_kv_bytes: Keys and values that are kept quantized, codes and steps; None for none.
        num_new_rows: Rows of a sequence that are kept at ``kv_bytes`` beside them.
    """

    weight_bytes: float
    kv_bytes: float
    embedding_bytes: float | None = None
    head_bytes: float | None = None
    old_kv_bytes: float | None = None
    num_new_rows: int = 0

    @property
    def embedding(self) -> float:
        """Bytes per embedding value."""
        return self.weight_bytes if self.embedding_bytes is None else self.embedding_bytes

    @property
    def head(self) -> float:
        """Bytes per head value."""
        return self.embedding if self.head_bytes is None else self.head_bytes


def engine_precision(facts: Mapping[str, Any]) -> Precision:
    """Return the bytes per value of weights and KV cache as an engine holds them.

    Args:
        facts: What ``Engine.describe`` returned.
    """
    kv_bytes = getattr(torch, facts["dtype"]).itemsize
    weights = facts["bytes_per_weight"]
    kept = facts.get("kv_cache", {})
    old_kv_bytes = None
    if "bytes_per_old_token" in kept:
        # Old tokens are a sum over KV groups, those that stay in full precision included.
        num_groups, num_coded = facts["num_kv_groups"], kept["num_quantized_groups"]
        share = kept["bytes_per_old_token"] / kept["bytes_per_new_token"]
        old_kv_bytes = kv_bytes * (share * num_groups - (num_groups - num_coded)) / num_coded
    return Precision(
        weights,
        kv_bytes=kv_bytes,
        # Embeddings are looked up in the compute type, whatever format the products have.
        embedding_bytes=kv_bytes,
        head_bytes=weights,
        old_kv_bytes=old_kv_bytes,
        num_new_rows=kept.get("residual", 0),
    )


@dataclass(frozen=True, slots=True)
class StepCost:
    """Counted work of one or more steps.

    Attributes:
        weight_bytes: Weights of layers and head.
        embedding_bytes: Embedding rows of the tokens.
        kv_read_bytes: Keys and values read.
        kv_write_bytes: Keys and values written.
        linear_flops: Matrix products with weights.
        attention_flops: Scores and weighted sums.
    """

    weight_bytes: float = 0.0
    embedding_bytes: float = 0.0
    kv_read_bytes: float = 0.0
    kv_write_bytes: float = 0.0
    linear_flops: float = 0.0
    attention_flops: float = 0.0

    @property
    def kv_bytes(self) -> float:
        """Keys and values moved."""
        return self.kv_read_bytes + self.kv_write_bytes

    @property
    def num_bytes(self) -> float:
        """All bytes."""
        return self.weight_bytes + self.embedding_bytes + self.kv_bytes

    @property
    def flops(self) -> float:
        """All floating-point operations."""
        return self.linear_flops + self.attention_flops

    def __add__(self, other: StepCost) -> StepCost:
        """Add the work of two steps."""
        return StepCost(*(getattr(self, n) + getattr(other, n) for n in self.__slots__))

    def to_dict(self) -> dict[str, float]:
        """Return plain data."""
        return {n: getattr(self, n) for n in self.__slots__}


def layer_weights_read(config: ModelConfig, num_tokens: int) -> float:
    """Return the weights of all layers' products that a step reads, biases included.

    Args:
        config: The model.
        num_tokens: Tokens that go to experts; of those, a step reads the ones that are touched.
    """
    num_experts = 0.0 if config.moe is None else config.moe.distinct_experts(num_tokens)
    return config.num_layers * config.attention_parameters + config.mlp_parameters(num_experts)


def _layer_flops(config: ModelConfig, num_tokens: int, num_routed: int) -> float:
    """Return the FLOPs of the layers' products; padding goes through all of them but experts."""
    common = config.num_layers * config.attention_parameters + config.mlp_parameters(0)
    flops = 2.0 * common * num_tokens
    if config.moe is None:
        return flops
    experts = config.moe.num_sparse_layers * config.moe.top_k
    return flops + 2.0 * experts * config.moe.expert_parameters(config.hidden_size) * num_routed


def step_cost(step: StepStats, config: ModelConfig, precision: Precision) -> StepCost:
    """Count the bytes and FLOPs of one engine step.

    Args:
        step: Record of the step.
        config: The model.
        precision: Bytes per stored value.
    """
    num_full = config.layer_kinds.count("full")
    num_window = config.num_layers - num_full
    head_weights = config.vocab_size * config.hidden_size
    kv_row_bytes = 2 * config.kv_size * precision.kv_bytes  # of one token in one layer
    layer_weights = layer_weights_read(config, step.num_new_rows)
    has_head = step.num_logit_rows > 0
    return StepCost(
        weight_bytes=layer_weights * precision.weight_bytes
        + (head_weights * precision.head if has_head else 0.0),
        embedding_bytes=step.num_tokens * config.hidden_size * precision.embedding,
        kv_read_bytes=2
        * config.kv_size
        * (
            num_full * _row_bytes(step.num_context_tokens, step.num_seqs, precision)
            + num_window * _row_bytes(step.num_window_tokens, step.num_seqs, precision)
        ),
        kv_write_bytes=kv_row_bytes * config.num_layers * step.num_new_rows,
        linear_flops=_layer_flops(config, step.num_tokens, step.num_new_rows)
        + 2.0 * head_weights * step.num_logit_rows,
        attention_flops=4.0
        * config.query_size
        * (num_full * step.num_attention_pairs + num_window * step.num_window_pairs),
    )


def _row_bytes(num_rows: int, num_seqs: int, precision: Precision) -> float:
    """Return the bytes per channel of rows that are read: the newest in full, the rest quantized.

    A step knows the rows of all its sequences together. They are taken as equally long, which
    counts too few full rows where some are shorter than what is kept of each.

    Args:
        num_rows: Rows that are read.
        num_seqs: Sequences that they belong to.
        precision: Bytes per stored value.
    """
    if precision.old_kv_bytes is None:
        return num_rows * precision.kv_bytes
    new = min(num_rows, num_seqs * precision.num_new_rows)
    return new * precision.kv_bytes + (num_rows - new) * precision.old_kv_bytes


def step_bytes(
    step: StepStats, config: ModelConfig | TransformersConfig, precision: Precision
) -> float:
    """Return the bytes that one engine step moves.

    Of a model that transformers runs only its weights are known: those of one token, read once, are
    a lower bound.
    """
    if isinstance(config, TransformersConfig):
        return config.num_active_parameters * precision.weight_bytes
    return step_cost(step, config, precision).num_bytes
