"""Sizes of any decoder from its configuration values alone: weights, active weights, KV bytes.

Nothing is built or loaded, so a model of 700 billion weights is answered as fast as a small one:

    weights     embedding (+ head) + layers * (attention + norms + MLP)
    active      the same, with the routed experts of a token only; the whole embedding counts
    KV          values per token and layer: 2 * n_kv * d_h; with latents d_c + d_rope (+ index key)
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Attention:
    """Keys and values of heads.

    Attributes:
        num_heads, num_kv_heads, head_dim: Query heads, key heads, width of a head.
        qkv_bias, output_bias: Which products add a bias.
        norm_values: Weights of the norms of queries and keys together.
        has_sinks: One learnt score per head (gpt_oss).
    """

    num_heads: int
    num_kv_heads: int
    head_dim: int
    qkv_bias: bool = False
    output_bias: bool = False
    norm_values: int = 0
    has_sinks: bool = False

    @property
    def values_per_token(self) -> int:
        """Numbers cached per token."""
        return 2 * self.num_kv_heads * self.head_dim

    def parameters(self, hidden: int) -> int:
        """Return the weights of one layer's attention."""
        query, key = self.num_heads * self.head_dim, self.num_kv_heads * self.head_dim
        bias = (query + 2 * key if self.qkv_bias else 0) + (hidden if self.output_bias else 0)
        sinks = self.num_heads if self.has_sinks else 0
        return 2 * hidden * (query + key) + bias + sinks + self.norm_values


@dataclass(frozen=True, slots=True)
class LatentAttention:
    """Keys and values as one latent (MLA), with index keys where attention is sparse (DSA).

    Attributes:
        num_heads: Query heads.
        query_rank: Width of the queries' latent; None: queries come straight from the state.
        latent: Width of the cached latent.
        rope: Width of the cached rotary key.
        nope, value: Width of a head's other key part, and of its value.
        index_heads, index_width: Heads and width of the indexer; 0: there is none.
    """

    num_heads: int
    query_rank: int | None
    latent: int
    rope: int
    nope: int
    value: int
    index_heads: int = 0
    index_width: int = 0

    @property
    def values_per_token(self) -> int:
        """Numbers cached per token."""
        return self.latent + self.rope + self.index_width

    def parameters(self, hidden: int) -> int:
        """Return the weights of one layer's attention."""
        query, rank = self.num_heads * (self.nope + self.rope), self.query_rank
        queries = hidden * query if rank is None else rank * (hidden + 1 + query)
        down = hidden * (self.latent + self.rope) + self.latent
        up = self.latent * self.num_heads * (self.nope + self.value)
        return queries + down + up + self.num_heads * self.value * hidden + self._indexer(hidden)

    def _indexer(self, hidden: int) -> int:
        if not self.index_width:
            return 0
        queries = (self.query_rank or hidden) * self.index_heads * self.index_width
        return queries + hidden * (self.index_width + self.index_heads) + 2 * self.index_width


@dataclass(frozen=True, slots=True)
class Experts:
    """Mixture-of-experts layers.

    Attributes:
        num_experts, top_k: Routed experts per layer, and per token.
        width: Width of an expert.
        num_dense_layers: Leading layers with a dense MLP.
        shared_width: Width of all shared experts together.
        router_bias: The router adds a learnt bias to its scores (gpt_oss).
        expert_bias: Experts add biases (gpt_oss).
    """

    num_experts: int
    top_k: int
    width: int
    num_dense_layers: int = 0
    shared_width: int = 0
    router_bias: bool = False
    expert_bias: bool = False

    def parameters(self, hidden: int, num_experts: int) -> int:
        """Return the weights of one sparse layer with so many of its routed experts."""
        expert = 3 * hidden * self.width
        expert += 2 * self.width + hidden if self.expert_bias else 0
        router = self.num_experts * (hidden + self.router_bias)
        return num_experts * expert + router + 3 * hidden * self.shared_width


@dataclass(frozen=True, slots=True)
class Architecture:
    """A decoder, as far as its sizes go.

    Attributes:
        family: transformers' ``model_type``.
        vocab_size, hidden_size, num_layers: As in ``config.json``.
        mlp_size: Width of dense MLPs.
        attention: Of every layer.
        experts: None: all MLPs are dense.
        tied: The head is the embedding.
        norms_per_layer: Norms of the residual stream.
        num_window_layers, window: Layers that keep only the last tokens, and how many.
        num_unindexed_layers: Layers that use another layer's sparse choice, and so have no indexer.
    """

    family: str
    vocab_size: int
    hidden_size: int
    num_layers: int
    mlp_size: int
    attention: Attention | LatentAttention
    experts: Experts | None = None
    tied: bool = False
    norms_per_layer: int = 2
    num_window_layers: int = 0
    window: int | None = None
    num_unindexed_layers: int = 0

    @property
    def num_parameters(self) -> int:
        """Number of weights."""
        return self._count(self.experts.num_experts if self.experts else 0)

    @property
    def num_active_parameters(self) -> int:
        """Number of weights that belong to one token."""
        return self._count(self.experts.top_k if self.experts else 0)

    def weight_bytes(self, bits: float = 16) -> float:
        """Return the bytes of all weights at so many bits each."""
        return self.num_parameters * bits / 8

    def kv_bytes_per_token(self, bytes_per_value: float = 2) -> float:
        """Return what one token adds while every layer keeps it."""
        values = self.num_layers * self.attention.values_per_token
        return (values - self._missing_index_values()) * bytes_per_value

    def kv_bytes(self, num_tokens: int, bytes_per_value: float = 2) -> float:
        """Return what a sequence holds; window layers keep no more than their window."""
        kept = num_tokens if self.window is None else min(num_tokens, self.window)
        full = (self.num_layers - self.num_window_layers) * num_tokens
        values = (full + self.num_window_layers * kept) * self.attention.values_per_token
        return (values - self._missing_index_values() * num_tokens) * bytes_per_value

    def _missing_index_values(self) -> int:
        width = getattr(self.attention, "index_width", 0)
        return self.num_unindexed_layers * width

    def _count(self, num_experts: int) -> int:
        hidden, experts = self.hidden_size, self.experts
        num_dense = self.num_layers if experts is None else experts.num_dense_layers
        mlps = num_dense * 3 * hidden * self.mlp_size
        if experts is not None:
            mlps += (self.num_layers - num_dense) * experts.parameters(hidden, num_experts)
        layer = self.attention.parameters(hidden) + self.norms_per_layer * hidden
        embeddings = (1 if self.tied else 2) * self.vocab_size * hidden
        return self.num_layers * layer - self._missing_indexers() + mlps + embeddings + hidden

    def _missing_indexers(self) -> int:
        if not isinstance(self.attention, LatentAttention):
            return 0
        return self.num_unindexed_layers * self.attention._indexer(self.hidden_size)


def read_architecture(raw: Mapping[str, Any]) -> Architecture | None:
    """Return the sizes of a ``config.json``; None for a family without a rule here.

    Args:
        raw: Its content, all values that the rule needs given.
    """
    from infopt.models.architecture_rules import RULES

    part = raw.get("text_config")
    if isinstance(part, Mapping):
        raw = {**raw, **part}
    rule = RULES.get(str(raw.get("model_type")))
    return None if rule is None else rule(raw)
