"""Configuration values of full-size models, for sizes of models that no test machine can hold.

The values are those of each repository's ``config.json``; `stated` is what its authors say of it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from infopt.errors import ModelNotFoundError, nearest
from infopt.models.architecture import Architecture, read_architecture


@dataclass(frozen=True, slots=True)
class PublishedModel:
    """A model that is known by its numbers.

    Attributes:
        slug: Name here.
        repository: Where its ``config.json`` is, on the Hugging Face hub.
        values: The values that sizes follow from.
        stated: Total and active weights that its authors state, in billions.
    """

    slug: str
    repository: str
    values: dict[str, Any]
    stated: tuple[float, float]

    @property
    def architecture(self) -> Architecture:
        """Its sizes."""
        architecture = read_architecture(self.values)
        assert architecture is not None, self.slug
        return architecture


def _heads(
    family: str,
    vocab: int,
    hidden: int,
    layers: int,
    heads: int,
    kv: int,
    width: int,
    mlp: int,
    **more: Any,
) -> dict[str, Any]:
    return {
        "model_type": family,
        "vocab_size": vocab,
        "hidden_size": hidden,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": kv,
        "head_dim": width,
        "intermediate_size": mlp,
        **more,
    }


def _latents(
    family: str, vocab: int, hidden: int, layers: int, heads: int, mlp: int, **more: Any
) -> dict[str, Any]:
    return {
        "model_type": family,
        "vocab_size": vocab,
        "hidden_size": hidden,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "intermediate_size": mlp,
        "q_lora_rank": 1536,
        "kv_lora_rank": 512,
        "qk_rope_head_dim": 64,
        "qk_nope_head_dim": 128,
        "v_head_dim": 128,
        "moe_intermediate_size": 2048,
        "n_shared_experts": 1,
        "n_routed_experts": 256,
        "num_experts_per_tok": 8,
        "first_k_dense_replace": 3,
        **more,
    }


_V3 = _latents("deepseek_v3", 129280, 7168, 61, 128, 18432)
_KIMI = _latents(
    "kimi_k2", 163840, 7168, 61, 64, 18432, n_routed_experts=384, first_k_dense_replace=1
)
_GLM_5 = _latents(
    "glm_moe_dsa",
    154880,
    6144,
    78,
    64,
    12288,
    q_lora_rank=2048,
    qk_nope_head_dim=192,
    v_head_dim=256,
    index_n_heads=32,
    index_head_dim=128,
)

_MODELS = (
    PublishedModel("deepseek-v3", "deepseek-ai/DeepSeek-V3", _V3, (671, 37)),
    PublishedModel(
        "deepseek-v3.2",
        "deepseek-ai/DeepSeek-V3.2",
        _V3 | {"model_type": "deepseek_v32", "index_n_heads": 64, "index_head_dim": 128},
        (671, 37),
    ),
    PublishedModel("kimi-k2", "moonshotai/Kimi-K2-Instruct", _KIMI, (1000, 32)),
    PublishedModel(
        "kimi-k2.5", "moonshotai/Kimi-K2.5", _KIMI | {"model_type": "kimi_k25"}, (1000, 32)
    ),
    PublishedModel("glm-5", "zai-org/GLM-5", _GLM_5, (744, 40)),
    PublishedModel(
        "minimax-m2.5",
        "MiniMaxAI/MiniMax-M2.5",
        _heads(
            "minimax_m2",
            200064,
            3072,
            62,
            48,
            8,
            128,
            1536,
            num_local_experts=256,
            num_experts_per_tok=8,
        ),
        (230, 10),
    ),
    PublishedModel(
        "qwen3-32b",
        "Qwen/Qwen3-32B",
        _heads("qwen3", 151936, 5120, 64, 64, 8, 128, 25600),
        (32.8, 32.8),
    ),
    PublishedModel(
        "llama-3.3-70b",
        "meta-llama/Llama-3.3-70B-Instruct",
        _heads("llama", 128256, 8192, 80, 64, 8, 128, 28672),
        (70.6, 70.6),
    ),
    PublishedModel(
        "gpt-oss-120b",
        "openai/gpt-oss-120b",
        _heads(
            "gpt_oss",
            201088,
            2880,
            36,
            64,
            8,
            64,
            2880,
            num_local_experts=128,
            num_experts_per_tok=4,
            sliding_window=128,
        ),
        (116.8, 5.1),
    ),
    PublishedModel(
        "gpt-oss-20b",
        "openai/gpt-oss-20b",
        _heads(
            "gpt_oss",
            201088,
            2880,
            24,
            64,
            8,
            64,
            2880,
            num_local_experts=32,
            num_experts_per_tok=4,
            sliding_window=128,
        ),
        (20.9, 3.6),
    ),
    PublishedModel(
        "gemma-3-27b",
        "google/gemma-3-27b-it",
        _heads("gemma3_text", 262208, 5376, 62, 32, 16, 128, 21504, sliding_window=1024),
        (27, 27),
    ),
    PublishedModel(
        "olmoe-1b-7b",
        "allenai/OLMoE-1B-7B-0924",
        _heads("olmoe", 50304, 2048, 16, 16, 16, 128, 1024, num_experts=64, num_experts_per_tok=8),
        (6.9, 1.3),
    ),
    PublishedModel(
        "mixtral-8x7b",
        "mistralai/Mixtral-8x7B-v0.1",
        _heads(
            "mixtral",
            32000,
            4096,
            32,
            32,
            8,
            128,
            14336,
            num_local_experts=8,
            num_experts_per_tok=2,
        ),
        (46.7, 12.9),
    ),
)

PUBLISHED: dict[str, PublishedModel] = {model.slug: model for model in _MODELS}
"""By slug."""


def published_model(slug: str) -> PublishedModel:
    """Return a published model.

    Raises:
        ModelNotFoundError: Names the nearest slug.
    """
    if slug not in PUBLISHED:
        raise ModelNotFoundError(
            f"{slug!r} is no published model.{nearest(slug, PUBLISHED)}",
            field="model",
            value=slug,
            remedy=f"Known: {', '.join(sorted(PUBLISHED))}.",
        )
    return PUBLISHED[slug]
