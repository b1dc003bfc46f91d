"""GGUF metadata -> `ModelConfig`."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from infopt.errors import CheckpointError, UnsupportedModelError
from infopt.models.config import LayerKind, ModelConfig, RopeConfig
from infopt.models.gguf_fields import GGUFFields

GEMMA_WINDOW_THETA = 10_000.0
GEMMA_PATTERN = 6
_GEMMA3_27B_LAYERS = 62

_PADDING = re.compile(r"\[PAD\d+\]")
_UNUSED_TYPE = 5


@dataclass(frozen=True, slots=True)
class GGUFFamily:
    """How a GGUF architecture differs from Llama.

    Attributes:
        family: Name in `ModelConfig`.
        permuted: Rows of q and k are stored in interleaved-pair order.
        values: Further fields of `ModelConfig`.
    """

    family: str
    permuted: bool
    values: Mapping[str, Any]


FAMILIES: dict[str, GGUFFamily] = {
    "llama": GGUFFamily("llama", True, {}),
    "qwen2": GGUFFamily("qwen2", False, {}),
    "qwen3": GGUFFamily("qwen3", False, {"qk_norm": True}),
    "gemma3": GGUFFamily(
        "gemma3_text",
        False,
        {"qk_norm": True, "sandwich_norms": True, "activation": "gelu_tanh"},
    ),
}


def gguf_family(metadata: Mapping[str, Any]) -> GGUFFamily:
    """Return the family of a file.

    Raises:
        UnsupportedModelError: Names the architecture and lists the supported ones.
    """
    architecture = metadata.get("general.architecture")
    if architecture not in FAMILIES:
        raise UnsupportedModelError(
            f"GGUF architecture {architecture!r} is not supported.",
            field="general.architecture",
            value=architecture,
            remedy=f"Supported architectures: {', '.join(sorted(FAMILIES))}.",
        )
    if int(metadata.get("split.count", 1)) > 1:
        raise UnsupportedModelError(
            "This GGUF model is split over several files.",
            field="split.count",
            value=int(metadata["split.count"]),
            remedy="Merge the parts into one file first (gguf-split --merge).",
        )
    return FAMILIES[architecture]


def gguf_config(
    metadata: Mapping[str, Any],
    *,
    vocab_size: int,
    tensor_names: frozenset[str],
    rope_factors: tuple[float, ...] | None = None,
) -> ModelConfig:
    """Translate GGUF metadata.

    Args:
        metadata: Key -> value, as `GGUFReader` gives them.
        vocab_size: Rows of the embedding tensor.
        tensor_names: Names in the file: they tell whether there is a head and whether there are
            biases.
        rope_factors: Content of ``rope_freqs.weight``, if the file has it.

    Raises:
        UnsupportedModelError: Names the metadata key that cannot be honoured.
        CheckpointError: Names the metadata key that is missing.
    """
    family = gguf_family(metadata)
    fields = GGUFFields(metadata, metadata["general.architecture"])
    _refuse_what_is_not_computed(fields)
    num_heads = int(fields.need("attention.head_count"))
    hidden = int(fields.need("embedding_length"))
    head_dim = int(fields.get("attention.key_length", hidden // num_heads))
    num_layers = int(fields.need("block_count"))
    for key in ("attention.value_length", "rope.dimension_count"):
        if int(fields.get(key, head_dim)) != head_dim:
            raise fields.unsupported(key)
    if rope_factors is not None and len(rope_factors) != head_dim // 2:
        raise CheckpointError(
            f"rope_freqs.weight has {len(rope_factors)} factors, heads of {head_dim} need "
            f"{head_dim // 2}.",
            field="rope_freqs.weight",
            value=len(rope_factors),
        )
    kinds, window = _layers(fields, num_layers, family.family)
    return ModelConfig(
        family=family.family,
        vocab_size=vocab_size,
        num_real_tokens=count_real_tokens(metadata, vocab_size),
        hidden_size=hidden,
        intermediate_size=int(fields.need("feed_forward_length")),
        num_layers=num_layers,
        num_heads=num_heads,
        num_kv_heads=int(fields.get("attention.head_count_kv", num_heads)),
        head_dim=head_dim,
        max_position_embeddings=int(fields.need("context_length")),
        layer_kinds=kinds,
        sliding_window=window,
        attention_scale=_attention_scale(family.family, num_layers, hidden, num_heads, head_dim),
        rms_norm_eps=float(fields.need("attention.layer_norm_rms_epsilon")),
        rope=RopeConfig(_theta(fields), _rope_scaling(fields), rope_factors),
        rope_window=_rope_window(fields, family.family),
        embedding_scale=hidden**0.5 if family.family == "gemma3_text" else 1.0,
        attention_softcap=_softcap(fields, "attn_logit_softcapping"),
        final_softcap=_softcap(fields, "final_logit_softcapping"),
        qkv_bias="blk.0.attn_q.bias" in tensor_names,
        output_bias="blk.0.attn_output.bias" in tensor_names,
        mlp_bias="blk.0.ffn_down.bias" in tensor_names,
        tie_word_embeddings="output.weight" not in tensor_names,
        bos_token_id=_token_id(metadata, "bos"),
        eos_token_ids=_eos_token_ids(metadata),
        **family.values,
    )


def count_real_tokens(metadata: Mapping[str, Any], vocab_size: int) -> int:
    """Return how many ids are tokens: converters fill the list up with ``[PAD123]`` entries.

    Raises:
        CheckpointError: If there are more tokens than embedding rows.
    """
    tokens = metadata.get("tokenizer.ggml.tokens")
    if tokens is None:
        return vocab_size
    types = metadata.get("tokenizer.ggml.token_type")
    num_tokens = len(tokens)
    if num_tokens > vocab_size:
        raise CheckpointError(
            f"The tokenizer has {num_tokens} entries, the embedding only {vocab_size} rows.",
            field="tokenizer.ggml.tokens",
            value=num_tokens,
        )
    while num_tokens and _is_padding(tokens, types, num_tokens - 1):
        num_tokens -= 1
    return num_tokens


def _is_padding(tokens: list[str], types: np.ndarray | None, index: int) -> bool:
    unused = types is None or int(types[index]) == _UNUSED_TYPE
    return unused and _PADDING.fullmatch(tokens[index]) is not None


def _refuse_what_is_not_computed(fields: GGUFFields) -> None:
    if int(fields.get("expert_count", 0)) > 0:
        raise fields.unsupported("expert_count")
    if not fields.get("attention.causal", True):
        raise fields.unsupported("attention.causal")
    if fields.architecture != "gemma3" and int(fields.get("attention.sliding_window", 0)) > 0:
        raise fields.unsupported("attention.sliding_window")


def _layers(
    fields: GGUFFields, num_layers: int, family: str
) -> tuple[tuple[LayerKind, ...], int | None]:
    kinds: list[LayerKind]
    if family != "gemma3_text":
        kinds = ["full"] * num_layers
        return tuple(kinds), None
    window = int(fields.need("attention.sliding_window"))
    pattern = fields.metadata.get("gemma3.attention.sliding_window_pattern", GEMMA_PATTERN)
    if isinstance(pattern, np.ndarray):
        is_window = [bool(p) for p in pattern]
    else:
        is_window = [(i + 1) % int(pattern) != 0 for i in range(num_layers)]
    if len(is_window) != num_layers:
        raise fields.unsupported("attention.sliding_window_pattern")
    kinds = ["window" if w else "full" for w in is_window]
    return tuple(kinds), window


def _attention_scale(
    family: str, num_layers: int, hidden: int, num_heads: int, head_dim: int
) -> float:
    # GGUF has no key for Gemma's query_pre_attn_scalar. It equals head_dim in all sizes but 27B,
    # where it is hidden / heads; the format's own runtime tells that size by its layer count.
    if family == "gemma3_text" and num_layers == _GEMMA3_27B_LAYERS:
        return (hidden / num_heads) ** -0.5
    return head_dim**-0.5


def _theta(fields: GGUFFields) -> float:
    return float(fields.get("rope.freq_base", 10_000.0))


def _rope_window(fields: GGUFFields, family: str) -> RopeConfig | None:
    if family != "gemma3_text":
        return None
    return RopeConfig(float(fields.get("rope.freq_base_swa", GEMMA_WINDOW_THETA)))


def _rope_scaling(fields: GGUFFields) -> dict[str, Any] | None:
    kind = fields.get("rope.scaling.type", "linear" if "rope.scale_linear" in fields else "none")
    if kind == "none":
        return None
    if kind not in ("linear", "yarn"):
        raise fields.unsupported("rope.scaling.type")
    factor = fields.get("rope.scaling.factor", fields.get("rope.scale_linear"))
    if factor is None:
        factor = fields.need("rope.scaling.factor")
    scaling: dict[str, Any] = {"rope_type": kind, "factor": float(factor)}
    if kind == "yarn":
        original = fields.need("rope.scaling.original_context_length")
        scaling["original_max_position_embeddings"] = int(original)
        for name in ("beta_fast", "beta_slow"):
            if f"rope.scaling.yarn_{name}" in fields:
                scaling[name] = float(fields.get(f"rope.scaling.yarn_{name}"))
    return scaling


def _softcap(fields: GGUFFields, key: str) -> float | None:
    return float(fields.get(key, 0.0)) or None


def _token_id(metadata: Mapping[str, Any], name: str) -> int | None:
    value = metadata.get(f"tokenizer.ggml.{name}_token_id")
    return None if value is None else int(value)


def _eos_token_ids(metadata: Mapping[str, Any]) -> tuple[int, ...]:
    ids = (_token_id(metadata, name) for name in ("eos", "eot", "eom"))
    return tuple(dict.fromkeys(i for i in ids if i is not None))
