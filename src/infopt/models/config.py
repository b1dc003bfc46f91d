"""`ModelConfig`: the architecture of a decoder as plain data, whatever file it came from.

One dataclass describes every family that the native decoder runs. Families differ by values here,
not by classes: loaders translate a Hugging Face ``config.json`` or GGUF metadata into it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

LayerKind = Literal["full", "window"]
Activation = Literal["silu", "gelu_tanh"]


@dataclass(frozen=True, slots=True)
class RopeConfig:
    """Rotary position embedding.

    Attributes:
        theta: Base of the wavelengths.
        scaling: Hugging Face's ``rope_parameters`` without theta (``rope_type`` and what belongs to
            it), or None for plain rotary embedding.
        factors: Explicit divisors per frequency (GGUF ``rope_freqs.weight``), shape
            ``(head_dim / 2,)``.
    """

    theta: float = 10000.0
    scaling: Mapping[str, Any] | None = None
    factors: tuple[float, ...] | None = None


@dataclass(frozen=True, slots=True)
class MoeConfig:
    """Mixture-of-experts layers of a decoder.

    Attributes:
        num_experts: Routed experts per layer.
        top_k: Experts that a token goes to.
        intermediate_size: Width of an expert.
        is_sparse: Per layer, whether its MLP is a mixture of experts.
        scoring: ``softmax`` over all experts, or a ``sigmoid`` of each.
        renormalize: Weights of a token sum to 1.
        selection_bias: A stored bias decides, with the scores, who is chosen.
        num_groups: Groups of consecutive experts (1: none).
        top_groups: Groups that a token's experts may come from.
        best_two: A group is worth the sum of its best two experts, not its best one.
        routed_scaling: Factor on the weights.
        shared_size: Width of the shared expert; None: there is none.
        shared_gate: The shared expert is weighed by a sigmoid of its own.
    """

    num_experts: int
    top_k: int
    intermediate_size: int
    is_sparse: tuple[bool, ...]
    scoring: Literal["softmax", "sigmoid"] = "softmax"
    renormalize: bool = True
    selection_bias: bool = False
    num_groups: int = 1
    top_groups: int = 1
    best_two: bool = False
    routed_scaling: float = 1.0
    shared_size: int | None = None
    shared_gate: bool = False

    def __post_init__(self) -> None:
        """Check internal consistency (loaders have checked what a user can get wrong)."""
        assert self.num_experts % self.num_groups == 0
        size = self.num_experts // self.num_groups
        assert 1 <= self.top_groups <= self.num_groups
        assert 1 <= self.top_k <= self.top_groups * size
        assert size > 1 or not self.best_two
        assert self.shared_size is not None or not self.shared_gate

    @property
    def num_sparse_layers(self) -> int:
        """Layers whose MLP is a mixture of experts."""
        return sum(self.is_sparse)

    def distinct_experts(self, num_tokens: float) -> float:
        """Return how many experts of a layer so many tokens are expected to touch.

        E (1 - ((E - k) / E)^n) for tokens that choose evenly and independently. Real choices are
        skewed, so they touch fewer.
        """
        skipped = (self.num_experts - self.top_k) / self.num_experts
        return self.num_experts * (1 - skipped**num_tokens)

    def expert_parameters(self, hidden_size: int) -> int:
        """Return the weights of one routed expert."""
        return 3 * hidden_size * self.intermediate_size

    def common_parameters(self, hidden_size: int) -> int:
        """Return the weights of a sparse MLP that every token reads: router and shared expert."""
        router = self.num_experts * (hidden_size + self.selection_bias)
        shared = 3 * hidden_size * (self.shared_size or 0)
        return router + shared + (hidden_size if self.shared_gate else 0)


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """Architecture of a decoder-only transformer.

    Attributes:
        family: Hugging Face's ``model_type``: llama, mistral, qwen2, qwen3, gemma3_text, mixtral,
            qwen2_moe, qwen3_moe, olmoe.
        vocab_size: Rows of the embedding (may be padded above the tokenizer's entries).
        num_real_tokens: Ids at or above this are padding: they are never sampled.
        layer_kinds: ``full`` or ``window`` per layer.
        sliding_window: Keys a window layer sees, itself included: j in (i - W, i].
        rope: Rotary embedding of full layers (and of window layers unless ``rope_window``).
        rope_window: Rotary embedding of window layers, where it differs.
        attention_scale: Factor on q.k; usually ``head_dim ** -0.5``.
        qkv_bias, output_bias, mlp_bias: Which linear layers add a bias.
        qk_norm: RMS norm over each head's query and key before rotation.
        qk_norm_rows: The norm is over all heads of a token together (OLMoE).
        sandwich_norms: Norms after attention and MLP as well (Gemma).
        embedding_scale: Factor on the embeddings (Gemma: sqrt(hidden_size)).
        attention_softcap, final_softcap: c * tanh(x / c) on scores / logits; None is off.
        tie_word_embeddings: The head is the embedding.
        bos_token_id, eos_token_ids: Special ids from the checkpoint.
        moe: Mixture-of-experts layers; None: all MLPs are dense.
    """

    family: str
    vocab_size: int
    num_real_tokens: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    max_position_embeddings: int
    layer_kinds: tuple[LayerKind, ...]
    attention_scale: float
    rms_norm_eps: float = 1e-5
    activation: Activation = "silu"
    sliding_window: int | None = None
    rope: RopeConfig = field(default_factory=RopeConfig)
    rope_window: RopeConfig | None = None
    qkv_bias: bool = False
    output_bias: bool = False
    mlp_bias: bool = False
    qk_norm: bool = False
    qk_norm_rows: bool = False
    sandwich_norms: bool = False
    embedding_scale: float = 1.0
    attention_softcap: float | None = None
    final_softcap: float | None = None
    tie_word_embeddings: bool = False
    bos_token_id: int | None = None
    eos_token_ids: tuple[int, ...] = ()
    moe: MoeConfig | None = None

    def __post_init__(self) -> None:
        """Check internal consistency (loaders have checked what a user can get wrong)."""
        assert len(self.layer_kinds) == self.num_layers
        assert self.num_heads % self.num_kv_heads == 0
        assert self.sliding_window is not None or "window" not in self.layer_kinds
        assert self.moe is None or len(self.moe.is_sparse) == self.num_layers
        assert self.qk_norm or not self.qk_norm_rows

    @property
    def query_size(self) -> int:
        """Width of all query heads."""
        return self.num_heads * self.head_dim

    @property
    def kv_size(self) -> int:
        """Width of all key (or value) heads."""
        return self.num_kv_heads * self.head_dim

    @property
    def query_norm_size(self) -> int:
        """Values that a norm of queries runs over."""
        return self.query_size if self.qk_norm_rows else self.head_dim

    @property
    def key_norm_size(self) -> int:
        """Values that a norm of keys runs over."""
        return self.kv_size if self.qk_norm_rows else self.head_dim

    @property
    def num_parameters(self) -> int:
        """Number of weights, a tied head counted once."""
        return self._count(0 if self.moe is None else self.moe.num_experts)

    @property
    def num_active_parameters(self) -> int:
        """Number of weights that belong to one token: of the routed experts only those it goes to.

        The whole embedding counts, as in the figures that models are published with.
        """
        return self._count(0 if self.moe is None else self.moe.top_k)

    @property
    def attention_parameters(self) -> int:
        """Weights of one layer's q, k, v and output products, biases included."""
        weights = 2 * self.hidden_size * (self.query_size + self.kv_size)
        bias = (self.query_size + 2 * self.kv_size) if self.qkv_bias else 0
        return weights + bias + (self.hidden_size if self.output_bias else 0)

    @property
    def dense_mlp_parameters(self) -> int:
        """Weights of one dense layer's MLP, biases included."""
        bias = (2 * self.intermediate_size + self.hidden_size) if self.mlp_bias else 0
        return 3 * self.hidden_size * self.intermediate_size + bias

    def mlp_parameters(self, num_experts: float) -> float:
        """Return the weights of all layers' MLPs, with so many routed experts in a sparse layer."""
        moe = self.moe
        if moe is None:
            return self.num_layers * self.dense_mlp_parameters
        routed = num_experts * moe.expert_parameters(self.hidden_size)
        sparse = moe.num_sparse_layers * (routed + moe.common_parameters(self.hidden_size))
        return (self.num_layers - moe.num_sparse_layers) * self.dense_mlp_parameters + sparse

    def _count(self, num_experts: int) -> int:
        norms = (4 if self.sandwich_norms else 2) * self.hidden_size
        norms += (self.query_norm_size + self.key_norm_size) if self.qk_norm else 0
        layers = self.num_layers * (self.attention_parameters + norms)
        head = 0 if self.tie_word_embeddings else self.vocab_size * self.hidden_size
        embedding = self.vocab_size * self.hidden_size
        return layers + int(self.mlp_parameters(num_experts)) + embedding + head + self.hidden_size

    def kv_bytes_per_token(self, bytes_per_value: int) -> int:
        """Return KV bytes one token adds over all layers: 2 * L * n_kv * d_h * bytes."""
        return 2 * self.num_layers * self.kv_size * bytes_per_value
