"""Sizes from configuration values equal those of the real modules, and what authors state."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from infopt.errors import ModelNotFoundError
from infopt.models.architecture import read_architecture
from infopt.models.architecture_rules import RULES
from infopt.models.published import PUBLISHED, published_model

TINY = {
    "vocab_size": 320,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "tie_word_embeddings": False,
}
LATENT = {
    "num_key_value_heads": 4,
    "q_lora_rank": 24,
    "kv_lora_rank": 32,
    "qk_rope_head_dim": 16,
    "qk_nope_head_dim": 12,
    "v_head_dim": 20,
    "moe_intermediate_size": 40,
    "n_routed_experts": 8,
    "n_shared_experts": 2,
    "num_experts_per_tok": 2,
    "n_group": 1,
    "topk_group": 1,
    "first_k_dense_replace": 1,
}
SPARSE = LATENT | {"index_topk": 8, "index_n_heads": 4, "index_head_dim": 32}
EXPERTS = {"num_local_experts": 4, "num_experts_per_tok": 2}
CASES = {
    "llama": {"attention_bias": True},
    "mistral": {},
    "qwen2": {},
    "qwen3": {"tie_word_embeddings": True},
    "qwen3_moe": {
        "num_experts": 8,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 40,
        "mlp_only_layers": [1],
    },
    "gemma3_text": {"tie_word_embeddings": True},
    "mixtral": EXPERTS,
    "olmoe": {"num_experts": 8, "num_experts_per_tok": 2},
    "minimax_m2": EXPERTS,
    "gpt_oss": EXPERTS,
    "deepseek_v2": LATENT | {"q_lora_rank": None},
    "deepseek_v3": LATENT,
    "deepseek_v32": SPARSE,
    "glm_moe_dsa": SPARSE | {"indexer_types": ["full", "shared", "full"]},
}
SAME_AS = {"gemma3": "gemma3_text", "kimi_k2": "deepseek_v3", "kimi_k25": "deepseek_v3"}


@pytest.mark.parametrize("family", CASES)
def test_weights_are_those_of_the_modules(family: str) -> None:
    from transformers import CONFIG_MAPPING, AutoModelForCausalLM

    values = TINY | CASES[family]
    if family in ("qwen2", "olmoe"):
        del values["head_dim"]
    config = CONFIG_MAPPING[family](**values)
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
    architecture = read_architecture(json.loads(config.to_json_string(use_diff=False)))
    assert architecture is not None
    assert architecture.num_parameters == sum(w.numel() for w in model.parameters())
    routed = sum(w.numel() for name, w in model.named_parameters() if ".experts." in name)
    inactive = architecture.num_parameters - architecture.num_active_parameters
    experts = architecture.experts
    share = 0.0 if experts is None else 1 - experts.top_k / experts.num_experts
    assert inactive == round(routed * share)


def test_every_rule_is_tested() -> None:
    assert set(RULES) == set(CASES) | set(SAME_AS)


@pytest.mark.parametrize("slug", PUBLISHED)
def test_stated_sizes(slug: str) -> None:
    """Authors round, and some leave the input embedding out of the active weights."""
    model = published_model(slug)
    total, active = model.stated
    sizes = model.architecture
    assert sizes.num_parameters / 1e9 == pytest.approx(total, rel=0.03)
    embedding = sizes.vocab_size * sizes.hidden_size
    low = 0.95 * (sizes.num_active_parameters - embedding) / 1e9
    assert low <= active <= 1.05 * sizes.num_active_parameters / 1e9


@pytest.mark.parametrize(
    ("slug", "expected"),
    [
        ("deepseek-v3", 70_272),
        ("kimi-k2.5", 70_272),
        ("deepseek-v3.2", 61 * (512 + 64 + 128) * 2),
        ("glm-5", 78 * (512 + 64 + 128) * 2),
        ("llama-3.3-70b", 327_680),
        ("mixtral-8x7b", 131_072),
        ("olmoe-1b-7b", 131_072),
        ("qwen3-32b", 64 * 2 * 8 * 128 * 2),
    ],
)
def test_kv_bytes_per_token(slug: str, expected: int) -> None:
    sizes = published_model(slug).architecture
    assert sizes.kv_bytes_per_token() == expected
    assert sizes.kv_bytes(1000) == 1000 * expected


def test_windows_stop_growing() -> None:
    """gpt-oss-120b: 18 of 36 layers keep 128 tokens."""
    sizes = published_model("gpt-oss-120b").architecture
    per_layer = 2 * 8 * 64 * 2
    assert sizes.kv_bytes(100) == 36 * 100 * per_layer
    assert sizes.kv_bytes(10_000) == 18 * (10_000 + 128) * per_layer


def test_layers_that_share_a_choice_have_no_index_keys() -> None:
    values = published_model("glm-5").values | {
        "indexer_types": ["full" if i % 2 == 0 else "shared" for i in range(78)]
    }
    sizes = read_architecture(values)
    assert sizes is not None
    assert sizes.kv_bytes_per_token() == (78 * 576 + 39 * 128) * 2
    assert sizes.num_parameters < published_model("glm-5").architecture.num_parameters


def test_weight_bytes() -> None:
    sizes = published_model("llama-3.3-70b").architecture
    assert sizes.weight_bytes() == 2 * sizes.num_parameters
    assert sizes.weight_bytes(4.5) == pytest.approx(sizes.num_parameters * 4.5 / 8)


def test_unknown_names() -> None:
    assert read_architecture({"model_type": "mamba"}) is None
    with pytest.raises(ModelNotFoundError, match="deepseek-v3"):
        published_model("deepseek-v4")


def test_module_needs_no_library() -> None:
    """Sizes are answered where nothing but Python is installed."""
    source = Path(read_architecture.__code__.co_filename).parent
    for name in ("architecture", "architecture_rules", "published"):
        text = (source / f"{name}.py").read_text("utf-8")
        assert "import torch" not in text and "transformers import" not in text
