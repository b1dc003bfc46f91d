"""`ModelConfig` -> Hugging Face ``config.json``: what a checkpoint folder needs beside weights."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import torch

from infopt.errors import UnsupportedModelError
from infopt.models.checkpoint import Checkpoint
from infopt.models.config import ModelConfig, RopeConfig
from infopt.models.hf_config import hf_config, read_json, text_config
from infopt.models.quiet import quiet_transformers
from infopt.models.rope import rope_frequencies

ARCHITECTURES = {
    "llama": "LlamaForCausalLM",
    "mistral": "MistralForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
    "gemma3_text": "Gemma3ForCausalLM",
    "mixtral": "MixtralForCausalLM",
    "qwen2_moe": "Qwen2MoeForCausalLM",
    "qwen3_moe": "Qwen3MoeForCausalLM",
    "olmoe": "OlmoeForCausalLM",
}
"""Family -> class in transformers."""

# GGUF files hold the divisors that Llama 3's rule gives and not the rule; all its releases have
# these values, and only the factor differs.
_LLAMA3 = {
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}
_MAX_ROPE_ERROR = 1e-4

_STALE = ("quantization_config", "compression_config", "torch_dtype", "_name_or_path")


def export_config(
    checkpoint: Checkpoint, dtype: torch.dtype, *, tie_word_embeddings: bool
) -> dict[str, Any]:
    """Return the ``config.json`` of a folder with the weights of a checkpoint.

    A folder's own file is kept, but for what the arguments say; a GGUF file gets one from its
    metadata.

    Args:
        checkpoint: The model.
        dtype: Type of the weights that are not coded.
        tie_word_embeddings: Whether the head is the embedding.

    Raises:
        UnsupportedModelError: Names a setting of a GGUF file that such a file cannot say.
    """
    if checkpoint.format == "safetensors":
        raw = text_config(read_json(checkpoint.path / "config.json"))
        values = {key: value for key, value in raw.items() if key not in _STALE}
    else:
        values = config_values(checkpoint.config)
    return values | {
        "architectures": [ARCHITECTURES[checkpoint.config.family]],
        "tie_word_embeddings": tie_word_embeddings,
        "dtype": str(dtype).removeprefix("torch."),
    }


def export_generation_config(checkpoint: Checkpoint) -> dict[str, Any]:
    """Return the ``generation_config.json``: a folder's own, or the special ids of a GGUF file."""
    path = checkpoint.path / "generation_config.json"
    if checkpoint.format == "safetensors" and path.exists():
        return read_json(path)
    config = checkpoint.config
    ids = {"bos_token_id": config.bos_token_id, "eos_token_id": list(config.eos_token_ids)}
    return {key: value for key, value in ids.items() if value not in (None, [])}


def config_values(config: ModelConfig) -> dict[str, Any]:
    """Return a ``config.json`` that `hf_config` translates into the same architecture.

    Raises:
        UnsupportedModelError: Names the first value for which there is none.
    """
    from transformers import CONFIG_MAPPING

    values = _common(config)
    if config.family == "gemma3_text":
        values |= _gemma(config)
    else:
        values["rope_parameters"] = _rope(config.rope, config.head_dim)
    with quiet_transformers():
        raw = CONFIG_MAPPING[config.family](**values).to_dict()
    _check_same(config, raw)
    return raw


def _common(config: ModelConfig) -> dict[str, Any]:
    activation = {"silu": "silu", "gelu_tanh": "gelu_pytorch_tanh"}[config.activation]
    return {
        "vocab_size": config.vocab_size,
        "hidden_size": config.hidden_size,
        "intermediate_size": config.intermediate_size,
        "num_hidden_layers": config.num_layers,
        "num_attention_heads": config.num_heads,
        "num_key_value_heads": config.num_kv_heads,
        "head_dim": config.head_dim,
        "max_position_embeddings": config.max_position_embeddings,
        "rms_norm_eps": config.rms_norm_eps,
        "hidden_act": activation,
        "attention_bias": config.qkv_bias,
        "mlp_bias": config.mlp_bias,
        "tie_word_embeddings": config.tie_word_embeddings,
        "bos_token_id": config.bos_token_id,
        "eos_token_id": list(config.eos_token_ids) or None,
        "pad_token_id": None,
    }


def _gemma(config: ModelConfig) -> dict[str, Any]:
    names = {"full": "full_attention", "window": "sliding_attention"}
    ropes = {"full_attention": _rope(config.rope, config.head_dim)}
    ropes["sliding_attention"] = _rope(config.rope_window or config.rope, config.head_dim)
    return {
        "hidden_activation": "gelu_pytorch_tanh",
        "query_pre_attn_scalar": round(config.attention_scale**-2),
        "sliding_window": config.sliding_window,
        "layer_types": [names[kind] for kind in config.layer_kinds],
        "attn_logit_softcapping": config.attention_softcap,
        "final_logit_softcapping": config.final_softcap,
        "rope_parameters": ropes,
    }


def _rope(rope: RopeConfig, head_dim: int) -> dict[str, Any]:
    if rope.factors is None:
        scaling = dict(rope.scaling or {"rope_type": "default"})
        return {"rope_theta": rope.theta, **scaling}
    scaling = {"rope_type": "llama3", "factor": float(max(rope.factors)), **_LLAMA3}
    ruled, _ = rope_frequencies(RopeConfig(rope.theta, scaling), head_dim)
    stored, _ = rope_frequencies(rope, head_dim)
    if rope.scaling is not None or not torch.allclose(ruled, stored, rtol=_MAX_ROPE_ERROR, atol=0):
        raise UnsupportedModelError(
            "The file's rope_freqs.weight holds divisors of frequencies that are not those of "
            "Llama 3's rule, and config.json has no place for them.",
            field="rope_freqs.weight",
            value=rope.factors,
        )
    return {"rope_theta": rope.theta, **scaling}


def _check_same(config: ModelConfig, raw: Mapping[str, Any]) -> None:
    found = hf_config(raw, num_real_tokens=config.num_real_tokens)
    for field in dataclasses.fields(ModelConfig):
        asked, given = getattr(config, field.name), getattr(found, field.name)
        if asked != given and not _is_same_rope(asked, given, config.head_dim):
            raise UnsupportedModelError(
                f"config.json of a {config.family} model cannot say {field.name}={asked!r}.",
                field=field.name,
                value=asked,
            )


def _is_same_rope(asked: object, given: object, head_dim: int) -> bool:
    """Tell whether two rotary embeddings turn alike, however they are written down."""
    if not isinstance(given, RopeConfig) or not isinstance(asked, RopeConfig):
        return False
    tables = [rope_frequencies(rope, head_dim) for rope in (asked, given)]
    same = torch.allclose(tables[0][0], tables[1][0], rtol=_MAX_ROPE_ERROR, atol=0)
    return same and tables[0][1] == tables[1][1]
