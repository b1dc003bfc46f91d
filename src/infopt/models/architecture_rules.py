"""How each family's ``config.json`` becomes an `Architecture`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from infopt.models.architecture import Architecture, Attention, Experts, LatentAttention

Raw = Mapping[str, Any]


def _base(raw: Raw, attention: Attention | LatentAttention, **values: Any) -> Architecture:
    layers = raw.get("layer_types") or []
    num_window = sum(kind == "sliding_attention" for kind in layers)
    given = {
        "tied": bool(raw.get("tie_word_embeddings", False)),
        "num_window_layers": num_window,
        "window": raw.get("sliding_window") if num_window else None,
    }
    return Architecture(
        family=str(raw["model_type"]),
        vocab_size=raw["vocab_size"],
        hidden_size=raw["hidden_size"],
        num_layers=raw["num_hidden_layers"],
        mlp_size=raw.get("intermediate_size", 0),
        attention=attention,
        **(given | values),
    )


def _heads(raw: Raw, **values: Any) -> Attention:
    heads = raw["num_attention_heads"]
    return Attention(
        num_heads=heads,
        num_kv_heads=raw.get("num_key_value_heads") or heads,
        head_dim=raw.get("head_dim") or raw["hidden_size"] // heads,
        **values,
    )


def llama(raw: Raw) -> Architecture:
    """Llama, Mistral: biases where the configuration says so."""
    bias = bool(raw.get("attention_bias"))
    return _base(raw, _heads(raw, qkv_bias=bias, output_bias=bias))


def qwen2(raw: Raw) -> Architecture:
    """Biases of queries, keys and values."""
    return _base(raw, _heads(raw, qkv_bias=True))


def qwen3(raw: Raw) -> Architecture:
    """A norm over each head's query and key."""
    return _base(raw, _head_norms(raw))


def qwen3_moe(raw: Raw) -> Architecture:
    """Qwen3 with experts in all layers but those listed as dense."""
    experts = Experts(
        _num_experts(raw),
        raw["num_experts_per_tok"],
        raw["moe_intermediate_size"],
        num_dense_layers=len(raw.get("mlp_only_layers") or ()),
    )
    return _base(raw, _head_norms(raw), experts=experts)


def gemma3(raw: Raw) -> Architecture:
    """Norms before and after attention and MLP, norms of heads, a tied head."""
    tied = bool(raw.get("tie_word_embeddings", True))
    layers = raw.get("layer_types") or [
        "full_attention" if (i + 1) % 6 == 0 else "sliding_attention"
        for i in range(raw["num_hidden_layers"])
    ]
    return _base({**raw, "layer_types": layers}, _head_norms(raw), tied=tied, norms_per_layer=4)


def mixtral(raw: Raw) -> Architecture:
    """Experts in all layers."""
    experts = Experts(_num_experts(raw), raw["num_experts_per_tok"], raw["intermediate_size"])
    return _base(raw, _heads(raw), experts=experts)


def olmoe(raw: Raw) -> Architecture:
    """Experts in all layers, norms over all heads of a token together."""
    experts = Experts(_num_experts(raw), raw["num_experts_per_tok"], raw["intermediate_size"])
    return _base(raw, _row_norms(raw), experts=experts)


def minimax_m2(raw: Raw) -> Architecture:
    """Experts in all layers, norms over all heads of a token together."""
    experts = Experts(_num_experts(raw), raw["num_experts_per_tok"], raw["intermediate_size"])
    return _base(raw, _row_norms(raw), experts=experts)


def gpt_oss(raw: Raw) -> Architecture:
    """Sinks, biases everywhere, every second layer with a window."""
    layers = raw.get("layer_types") or [
        "sliding_attention" if i % 2 == 0 else "full_attention"
        for i in range(raw["num_hidden_layers"])
    ]
    experts = Experts(
        _num_experts(raw),
        raw["num_experts_per_tok"],
        raw["intermediate_size"],
        router_bias=True,
        expert_bias=True,
    )
    attention = _heads(raw, qkv_bias=True, output_bias=True, has_sinks=True)
    return _base({**raw, "layer_types": layers}, attention, experts=experts)


def deepseek(raw: Raw) -> Architecture:
    """DeepSeek V2, V3, V3.2, Kimi K2 and GLM 5: latents, shared experts, dense layers first."""
    attention = LatentAttention(
        num_heads=raw["num_attention_heads"],
        query_rank=raw.get("q_lora_rank"),
        latent=raw["kv_lora_rank"],
        rope=raw["qk_rope_head_dim"],
        nope=raw["qk_nope_head_dim"],
        value=raw["v_head_dim"],
        index_heads=raw.get("index_n_heads") or 0,
        index_width=raw.get("index_head_dim") or 0,
    )
    width = raw["moe_intermediate_size"]
    experts = Experts(
        _num_experts(raw),
        raw["num_experts_per_tok"],
        width,
        num_dense_layers=min(raw.get("first_k_dense_replace") or 0, raw["num_hidden_layers"]),
        shared_width=width * (raw.get("n_shared_experts") or 0),
    )
    unindexed = sum(kind == "shared" for kind in raw.get("indexer_types") or ())
    return _base(raw, attention, experts=experts, num_unindexed_layers=unindexed)


def _num_experts(raw: Raw) -> int:
    """Files spell it in three ways, transformers' own files too."""
    names = ("num_experts", "num_local_experts", "n_routed_experts")
    return next(raw[name] for name in names if raw.get(name) is not None)


def _head_norms(raw: Raw) -> Attention:
    bias = bool(raw.get("attention_bias"))
    plain = _heads(raw, qkv_bias=bias, output_bias=bias)
    return _heads(raw, qkv_bias=bias, output_bias=bias, norm_values=2 * plain.head_dim)


def _row_norms(raw: Raw) -> Attention:
    plain = _heads(raw)
    return _heads(raw, norm_values=(plain.num_heads + plain.num_kv_heads) * plain.head_dim)


RULES: dict[str, Callable[[Raw], Architecture]] = {
    "llama": llama,
    "mistral": llama,
    "qwen2": qwen2,
    "qwen3": qwen3,
    "qwen3_moe": qwen3_moe,
    "gemma3": gemma3,
    "gemma3_text": gemma3,
    "mixtral": mixtral,
    "olmoe": olmoe,
    "minimax_m2": minimax_m2,
    "gpt_oss": gpt_oss,
    "deepseek_v2": deepseek,
    "deepseek_v3": deepseek,
    "deepseek_v32": deepseek,
    "kimi_k2": deepseek,
    "kimi_k25": deepseek,
    "glm_moe_dsa": deepseek,
}
"""By ``model_type``."""
