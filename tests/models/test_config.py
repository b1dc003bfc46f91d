"""Counted parameters of mixtures of experts: published figures and the formula of touched ones."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from infopt.models.checkpoint import open_checkpoint
from infopt.models.config import MoeConfig
from infopt.models.hf_config import hf_config

MIXTRAL = hf_config(
    {
        "model_type": "mixtral",
        "vocab_size": 32000,
        "hidden_size": 4096,
        "intermediate_size": 14336,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
    }
)
OLMOE = hf_config({"model_type": "olmoe", "intermediate_size": 1024})


@pytest.mark.parametrize(
    ("config", "total", "active"), [(MIXTRAL, 46.7e9, 12.9e9), (OLMOE, 6.9e9, 1.3e9)]
)
def test_published_sizes(config, total: float, active: float) -> None:
    assert config.num_parameters == pytest.approx(total, rel=0.01)
    assert config.num_active_parameters == pytest.approx(active, rel=0.02)


def test_an_expert_of_mixtral() -> None:
    assert MIXTRAL.moe is not None
    assert MIXTRAL.moe.expert_parameters(4096) == 3 * 4096 * 14336


@pytest.mark.parametrize("family", ["mixtral", "qwen2_moe", "qwen3_moe", "olmoe"])
def test_parameters_are_those_of_transformers(
    tiny_model_dir: Callable[..., Path], family: str
) -> None:
    from transformers import AutoModelForCausalLM

    folder = tiny_model_dir(family)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    sizes = {name: tensor.numel() for name, tensor in model.named_parameters()}
    with open_checkpoint(folder) as checkpoint:
        config = checkpoint.config
    assert config.num_parameters == sum(sizes.values())
    assert config.moe is not None
    routed = sum(size for name, size in sizes.items() if ".mlp.experts." in name)
    idle = routed * (config.moe.num_experts - config.moe.top_k) // config.moe.num_experts
    assert config.num_active_parameters == sum(sizes.values()) - idle


def test_a_dense_model_reads_all_it_has(tiny_model_dir: Callable[..., Path]) -> None:
    with open_checkpoint(tiny_model_dir("qwen3")) as checkpoint:
        assert checkpoint.config.num_active_parameters == checkpoint.config.num_parameters


@pytest.mark.parametrize(
    ("num_experts", "top_k", "expected"),
    [
        (8, 2, {1: 2, 2: 3.5, 4: 5.47, 8: 7.2, 16: 7.92}),
        (64, 8, {1: 8, 2: 15, 4: 26.48, 8: 42.01, 16: 56.44, 32: 63.11}),
    ],
)
def test_experts_that_tokens_touch(num_experts: int, top_k: int, expected) -> None:
    moe = MoeConfig(num_experts, top_k, 16, (True,))
    for num_tokens, touched in expected.items():
        assert moe.distinct_experts(num_tokens) == pytest.approx(touched, abs=0.01)
    assert moe.distinct_experts(0) == 0


def test_the_formula_is_the_mean_of_even_choices() -> None:
    random = torch.Generator().manual_seed(0)
    moe = MoeConfig(16, 3, 16, (True,))
    for num_tokens in (1, 3, 10):
        draws = torch.rand(4000, num_tokens, 16, generator=random).argsort(-1)[..., :3]
        touched = torch.zeros(4000, 16).scatter_(1, draws.flatten(1), 1.0).sum(1)
        assert touched.mean().item() == pytest.approx(moe.distinct_experts(num_tokens), rel=0.01)
