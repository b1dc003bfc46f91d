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
class ModelConfig:
    """Architecture of a decoder-only transformer.

    Attributes:
        family: Hugging Face's ``model_type``: llama, mistral, qwen2, qwen3, gemma3_text.
        vocab_size: Rows of the embedding (may be padded above the tokenizer's entries).
        num_real_tokens: Ids at or above this are padding: they are never sampled.
        layer_kinds: ``full`` or ``window`` per layer.
        sliding_window: Keys a window layer sees, itself included: j in (i - W, i].
        rope: Rotary embedding of full layers (and of window layers unless ``rope_window``).
        rope_window: Rotary embedding of window layers, where it differs.
        attention_scale: Factor on q.k; usually ``head_dim ** -0.5``.
        qkv_bias, output_bias, mlp_bias: Which linear layers add a bias.
        qk_norm: RMS norm over each head's query and key before rotation.
        sandwich_norms: Norms after attention and MLP as well (Gemma).
        embedding_scale: Factor on the embeddings (Gemma: sqrt(hidden_size)).
        attention_softcap, final_softcap: c * tanh(x / c) on scores / logits; None is off.
        tie_word_embeddings: The head is the embedding.
        bos_token_id, eos_token_ids: Special ids from the checkpoint.
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
    sandwich_norms: bool = False
    embedding_scale: float = 1.0
    attention_softcap: float | None = None
    final_softcap: float | None = None
    tie_word_embeddings: bool = False
    bos_token_id: int | None = None
    eos_token_ids: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        """Check internal consistency (loaders have checked what a user can get wrong)."""
        assert len(self.layer_kinds) == self.num_layers
        assert self.num_heads % self.num_kv_heads == 0
        assert self.sliding_window is not None or "window" not in self.layer_kinds

    @property
    def query_size(self) -> int:
        """Width of all query heads."""
        return self.num_heads * self.head_dim

    @property
    def kv_size(self) -> int:
        """Width of all key (or value) heads."""
        return self.num_kv_heads * self.head_dim

    @property
    def num_parameters(self) -> int:
        """Number of weights, a tied head counted once."""
        attention = self.hidden_size * (self.query_size + 2 * self.kv_size)
        attention += self.query_size * self.hidden_size
        layer = attention + 3 * self.hidden_size * self.intermediate_size
        norms = (4 if self.sandwich_norms else 2) * self.hidden_size
        norms += 2 * self.head_dim if self.qk_norm else 0
        biases = (self.query_size + 2 * self.kv_size) if self.qkv_bias else 0
        biases += self.hidden_size if self.output_bias else 0
        biases += (2 * self.intermediate_size + self.hidden_size) if self.mlp_bias else 0
        head = 0 if self.tie_word_embeddings else self.vocab_size * self.hidden_size
        return (
            self.num_layers * (layer + norms + biases)
            + self.vocab_size * self.hidden_size
            + head
            + self.hidden_size
        )

    def kv_bytes_per_token(self, bytes_per_value: int) -> int:
        """Return KV bytes one token adds over all layers: 2 * L * n_kv * d_h * bytes."""
        return 2 * self.num_layers * self.kv_size * bytes_per_value
