"""Mixture-of-experts values of config.json: each family's own, and what is refused by name."""

from __future__ import annotations

import pytest

from infopt.errors import CheckpointError, InfoptError, UnsupportedModelError
from infopt.models.config import MoeConfig
from infopt.models.hf_config import hf_config

BASE = {
    "vocab_size": 320,
    "hidden_size": 64,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
}


def config(model_type: str, **values):
    return hf_config(BASE | {"model_type": model_type} | values)


def moe(model_type: str, **values) -> MoeConfig:
    found = config(model_type, **values).moe
    assert found is not None
    return found


def test_mixtral_has_experts_everywhere_whose_weights_sum_to_one() -> None:
    found = moe("mixtral", intermediate_size=48, num_local_experts=6, num_experts_per_tok=3)
    assert found == MoeConfig(6, 3, 48, (True,) * 4, renormalize=True)
    assert config("mixtral", sliding_window=32).layer_kinds == ("window",) * 4


def test_qwen2_moe_has_a_gated_shared_expert_and_sparse_layers_by_step() -> None:
    found = moe("qwen2_moe", decoder_sparse_step=2, mlp_only_layers=[3], norm_topk_prob=True)
    assert found.is_sparse == (False, True, False, False)
    assert (found.num_experts, found.top_k, found.intermediate_size) == (60, 4, 1408)
    assert (found.shared_size, found.shared_gate, found.renormalize) == (5632, True, True)
    assert not moe("qwen2_moe").renormalize


@pytest.mark.parametrize("bias", [True, False])
def test_qwen2_moe_says_whether_q_k_and_v_have_a_bias(bias: bool) -> None:
    found = config("qwen2_moe", qkv_bias=bias)
    assert (found.qkv_bias, found.output_bias) == (bias, False)


def test_qwen3_moe_reads_either_name_of_the_number_of_experts() -> None:
    assert moe("qwen3_moe", num_experts=24).num_experts == 24
    assert moe("qwen3_moe", num_local_experts=24).num_experts == 24
    assert moe("qwen3_moe").shared_size is None
    assert config("qwen3_moe", use_sliding_window=True, sliding_window=32).sliding_window == 32
    assert config("qwen3_moe", sliding_window=32).sliding_window is None


def test_olmoe_norms_queries_and_keys_over_all_heads() -> None:
    found = config("olmoe", num_experts=8, num_experts_per_tok=2, intermediate_size=40)
    assert (found.query_norm_size, found.key_norm_size) == (64, 32)
    assert found.moe == MoeConfig(8, 2, 40, (True,) * 4, renormalize=False)


@pytest.mark.parametrize("values", [{"num_experts": 0}, {"mlp_only_layers": [0, 1, 2, 3]}])
def test_without_sparse_layers_the_model_is_dense(values) -> None:
    assert config("qwen3_moe", **values).moe is None


@pytest.mark.parametrize(
    ("model_type", "values", "field"),
    [
        ("mixtral", {"num_experts_per_tok": 9}, "num_experts_per_tok"),
        ("olmoe", {"num_experts_per_tok": 0}, "num_experts_per_tok"),
        ("mixtral", {"num_local_experts": 0}, "num_experts"),
        ("qwen3_moe", {"moe_intermediate_size": 0}, "expert width"),
        ("qwen3_moe", {"decoder_sparse_step": 0}, "decoder_sparse_step"),
        ("qwen2_moe", {"shared_expert_intermediate_size": 0}, "shared_expert_intermediate_size"),
    ],
)
def test_impossible_values_are_named(model_type: str, values, field: str) -> None:
    with pytest.raises(CheckpointError) as caught:
        config(model_type, **values)
    assert caught.value.field == field


def test_clipped_queries_are_refused() -> None:
    with pytest.raises(UnsupportedModelError, match=r"clip_qkv=8\.0") as caught:
        config("olmoe", clip_qkv=8.0)
    assert isinstance(caught.value, InfoptError)
