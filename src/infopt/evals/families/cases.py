"""Small random configurations of every family that is proven, built offline."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

Kind = Literal["text", "vision"]


@dataclass(frozen=True, slots=True)
class FamilyCase:
    """One family.

    Attributes:
        family: ``model_type`` in ``config.json``.
        full_size: Models of this family that people run.
        changes: Configuration values that differ from `COMMON`.
        written_as: transformers' ``model_type`` where files spell it differently.
        kind: ``vision``: the text part of a model that also sees.
        note: What is special.
    """

    family: str
    full_size: str
    changes: dict[str, Any] = field(default_factory=dict)
    written_as: str | None = None
    kind: Kind = "text"
    note: str = ""


COMMON: dict[str, Any] = {
    "vocab_size": 320,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 512,
    "bos_token_id": 0,
    "eos_token_id": 1,
    "pad_token_id": None,
}

_ALTERNATING = ["sliding_attention", "full_attention"]
_WINDOWS = {"sliding_window": 24, "layer_types": _ALTERNATING}
_MLA: dict[str, Any] = {
    "num_key_value_heads": 4,
    "q_lora_rank": 32,
    "kv_lora_rank": 32,
    "qk_rope_head_dim": 16,
    "qk_nope_head_dim": 16,
    "v_head_dim": 16,
    "moe_intermediate_size": 32,
    "n_routed_experts": 8,
    "n_shared_experts": 1,
    "num_experts_per_tok": 2,
    "n_group": 2,
    "topk_group": 1,
    "first_k_dense_replace": 1,
}
# Fewer chosen tokens than any prompt has, so that the sparse path runs.
_DSA = _MLA | {"index_topk": 8, "index_n_heads": 8, "index_head_dim": 32}
_EXPERTS = {"num_local_experts": 4, "num_experts_per_tok": 2}
_ROUTED = {"moe_intermediate_size": 32, "num_experts": 8, "num_experts_per_tok": 2}

NATIVE = (
    FamilyCase("llama", "Llama 3.3 70B, SmolLM2"),
    FamilyCase("mistral", "Mistral 7B", {"sliding_window": 24}, note="a window in every layer"),
    FamilyCase("qwen2", "Qwen2.5", {"head_dim": None}),
    FamilyCase("qwen3", "Qwen3 32B"),
    FamilyCase("gemma3_text", "Gemma 3", _WINDOWS | {"query_pre_attn_scalar": 16}),
    FamilyCase("mixtral", "Mixtral 8x7B", _EXPERTS),
    FamilyCase(
        "qwen2_moe",
        "Qwen1.5 MoE",
        _ROUTED | {"shared_expert_intermediate_size": 48, "head_dim": None},
    ),
    FamilyCase("qwen3_moe", "Qwen3 30B-A3B", _ROUTED),
    FamilyCase(
        "olmoe", "OLMoE 1B-7B", {"num_experts": 8, "num_experts_per_tok": 2, "head_dim": None}
    ),
)

PAGED = (
    FamilyCase(
        "gpt_oss",
        "gpt-oss 20B, 120B",
        _EXPERTS | {"sliding_window": 24},
        note="sinks; a window in every second layer",
    ),
    FamilyCase("deepseek_v2", "DeepSeek V2", _MLA, note="latents"),
    FamilyCase("deepseek_v3", "DeepSeek V3, R1", _MLA, note="latents"),
    FamilyCase(
        "kimi_k2",
        "Kimi K2",
        _MLA | {"n_group": 1},
        written_as="deepseek_v3",
        note="deepseek_v3 under another name",
    ),
    FamilyCase(
        "kimi_k25",
        "Kimi K2.5",
        _MLA | {"n_group": 1},
        kind="vision",
        note="the text part; weights of the vision tower are dropped",
    ),
    FamilyCase("deepseek_v32", "DeepSeek V3.2", _DSA, note="latents and index keys, sparse"),
    FamilyCase(
        "glm_moe_dsa",
        "GLM 5",
        _DSA | {"num_hidden_layers": 3, "indexer_types": ["full", "shared", "full"]},
        note="latents and index keys, sparse; layers may share a choice",
    ),
    FamilyCase("minimax_m2", "MiniMax M2.5", _EXPERTS, note="norms over all heads of a token"),
    FamilyCase("gemma", "Gemma"),
    FamilyCase(
        "gemma2",
        "Gemma 2",
        _WINDOWS | {"query_pre_attn_scalar": 16, "attn_logit_softcapping": 2.0},
        note="caps on scores and logits",
    ),
    FamilyCase(
        "gemma3n_text",
        "Gemma 3n",
        {
            "num_hidden_layers": 4,
            "sliding_window": 24,
            "layer_types": _ALTERNATING * 2,
            "num_kv_shared_layers": 2,
            "hidden_size_per_layer_input": 16,
            "vocab_size_per_layer_input": 320,
            "laurel_rank": 8,
            "activation_sparsity_pattern": [0.0] * 4,
        },
        note="layers that read another layer's keys cache nothing",
    ),
    FamilyCase(
        "gemma4_text",
        "Gemma 4",
        {
            "num_hidden_layers": 4,
            "sliding_window": 24,
            "layer_types": _ALTERNATING * 2,
            "global_head_dim": 32,
            "vocab_size_per_layer_input": 320,
            "hidden_size_per_layer_input": 16,
        },
        note="heads of two widths",
    ),
    FamilyCase("glm4", "GLM 4"),
    FamilyCase(
        "glm4_moe", "GLM 4.5 to 4.7", _ROUTED | {"n_routed_experts": 8, "first_k_dense_replace": 1}
    ),
    FamilyCase(
        "llama4_text",
        "Llama 4",
        {
            "num_hidden_layers": 4,
            "num_local_experts": 4,
            "attention_chunk_size": 32,
            "intermediate_size_mlp": 96,
        },
        note="attention within chunks",
    ),
    FamilyCase("phi3", "Phi 3, Phi 4"),
    FamilyCase("olmo2", "OLMo 2"),
    FamilyCase("granite", "Granite 3"),
    FamilyCase("cohere2", "Command R7B, Command A", _WINDOWS),
    FamilyCase("smollm3", "SmolLM3"),
)

UNPAGED = (
    FamilyCase("deepseek_v4", "DeepSeek V4", note="compressed state"),
    FamilyCase(
        "qwen3_next",
        "Qwen3 Next",
        {
            "num_hidden_layers": 4,
            "num_experts": 4,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": 32,
            "shared_expert_intermediate_size": 32,
            "linear_num_key_heads": 2,
            "linear_num_value_heads": 4,
            "linear_key_head_dim": 16,
            "linear_value_head_dim": 16,
        },
        note="recurrent state",
    ),
    FamilyCase(
        "lfm2", "LFM2", {"layer_types": ["conv", "full_attention"]}, note="convolution state"
    ),
    FamilyCase("falcon", "Falcon", {"head_dim": None}, note="attention of its own"),
)

CASES: tuple[FamilyCase, ...] = (*NATIVE, *PAGED, *UNPAGED)
"""All families, in the order of the table."""
