"""GGUF metadata: what they mean, and that nothing in them is skipped silently."""

from __future__ import annotations

import numpy as np
import pytest

from infopt.errors import CheckpointError, UnsupportedModelError
from infopt.models.gguf_config import gguf_config

TENSORS = frozenset({"token_embd.weight", "output.weight"})


def metadata(architecture: str = "llama", **changes) -> dict:
    """Metadata of a small model; keys of ``changes`` have ``__`` for dots, None removes one."""
    values = {
        "block_count": 12,
        "context_length": 1024,
        "embedding_length": 64,
        "feed_forward_length": 128,
        "attention.head_count": 4,
        "attention.head_count_kv": 2,
        "attention.layer_norm_rms_epsilon": 1e-5,
    }
    if architecture == "gemma3":
        values["attention.sliding_window"] = 32
    values |= {key.replace("__", "."): value for key, value in changes.items()}
    found = {f"{architecture}.{key}": value for key, value in values.items() if value is not None}
    return found | {"general.architecture": architecture}


def config(architecture: str = "llama", *, tensors=TENSORS, vocab_size: int = 100, **changes):
    return gguf_config(
        metadata(architecture, **changes), vocab_size=vocab_size, tensor_names=tensors
    )


def test_defaults_of_the_format():
    found = config()
    assert (found.head_dim, found.rope.theta, found.rope.scaling) == (16, 10_000.0, None)
    assert found.layer_kinds == ("full",) * 12
    assert found.num_real_tokens == 100
    assert config(attention__head_count_kv=None).num_kv_heads == 4


def test_an_unsupported_architecture_is_named_with_the_supported_ones():
    with pytest.raises(UnsupportedModelError, match=r"'mamba'.*gemma3, llama, qwen2, qwen3"):
        gguf_config({"general.architecture": "mamba"}, vocab_size=1, tensor_names=TENSORS)


def test_a_split_model_is_refused():
    with pytest.raises(UnsupportedModelError, match="split over several files"):
        gguf_config(metadata() | {"split.count": 2}, vocab_size=1, tensor_names=TENSORS)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("attention__clamp_kqv", 8.0),
        ("expert_count", 8),
        ("attention__causal", False),
        ("attention__sliding_window", 4096),
        ("rope__dimension_count", 8),
        ("rope__scaling__type", "longrope"),
        ("attention__value_length", 32),
        ("attention__head_count_kv", np.array([2, 4] * 6)),
    ],
)
def test_a_setting_that_is_not_computed_is_refused_by_name(key, value):
    with pytest.raises(UnsupportedModelError, match=r"llama\." + key.replace("__", r"\.")):
        config(**{key: value})


@pytest.mark.parametrize("key", ["block_count", "embedding_length", "attention__head_count"])
def test_a_missing_setting_is_reported_by_name(key):
    with pytest.raises(CheckpointError, match=key.replace("__", r"\.")):
        config(**{key: None})


def test_per_layer_arrays_that_agree_are_one_value():
    assert config(attention__head_count_kv=np.array([2] * 12)).num_kv_heads == 2


def test_linear_rope_scaling_in_both_spellings():
    expected = {"rope_type": "linear", "factor": 4.0}
    found = config(rope__scaling__type="linear", rope__scaling__factor=4.0)
    assert found.rope.scaling == expected
    assert config(rope__scale_linear=4.0).rope.scaling == expected


def test_yarn_keeps_what_belongs_to_it():
    found = config(
        rope__scaling__type="yarn",
        rope__scaling__factor=4.0,
        rope__scaling__original_context_length=256,
        rope__scaling__yarn_beta_fast=16.0,
    )
    assert found.rope.scaling == {
        "rope_type": "yarn",
        "factor": 4.0,
        "original_max_position_embeddings": 256,
        "beta_fast": 16.0,
    }


def test_scaling_without_a_factor_is_reported():
    with pytest.raises(CheckpointError, match=r"rope\.scaling\.factor"):
        config(rope__scaling__type="linear")


def test_gemma_windows_default_to_five_in_six():
    found = config("gemma3", rope__freq_base=1e6)
    assert found.layer_kinds == (("window",) * 5 + ("full",)) * 2
    assert found.sliding_window == 32
    assert (found.rope.theta, found.rope_window.theta) == (1e6, 1e4)
    assert found.embedding_scale == 8.0
    assert found.sandwich_norms
    assert found.qk_norm
    assert found.activation == "gelu_tanh"


def test_gemma_window_pattern_as_number_or_per_layer():
    by_number = config("gemma3", attention__sliding_window_pattern=4)
    by_layer = config("gemma3", attention__sliding_window_pattern=np.array([1, 1, 1, 0] * 3, bool))
    assert by_number.layer_kinds == by_layer.layer_kinds == (("window",) * 3 + ("full",)) * 3
    with pytest.raises(UnsupportedModelError, match="sliding_window_pattern"):
        config("gemma3", attention__sliding_window_pattern=np.array([True, False]))


def test_gemma_rope_scaling_holds_for_full_layers_only():
    found = config("gemma3", rope__scaling__type="linear", rope__scaling__factor=8.0)
    assert found.rope.scaling is not None
    assert found.rope_window.scaling is None


def test_the_largest_gemma_scales_scores_by_hidden_size_per_head():
    assert config("gemma3", attention__key_length=8).attention_scale == 8**-0.5
    largest = config("gemma3", block_count=62, attention__key_length=8)
    assert largest.attention_scale == (64 / 4) ** -0.5


def test_softcaps_are_read():
    found = config("gemma3", final_logit_softcapping=30.0)
    assert (found.final_softcap, found.attention_softcap) == (30.0, None)


def test_biases_are_found_by_their_tensors():
    found = config("qwen2", tensors=TENSORS | {"blk.0.attn_q.bias"})
    assert (found.qkv_bias, found.output_bias, found.mlp_bias) == (True, False, False)


def test_padding_entries_of_the_vocabulary_are_not_tokens():
    """Pins the fault of serving placeholder tokens that only fill up the embedding."""
    tokens = [*"abcdef", "[PAD6]", "[PAD7]"]
    types = np.array([1] * 6 + [5] * 2)
    tokenizer = {"tokenizer.ggml.tokens": tokens, "tokenizer.ggml.token_type": types}
    found = gguf_config(metadata() | tokenizer, vocab_size=8, tensor_names=TENSORS)
    assert (found.vocab_size, found.num_real_tokens) == (8, 6)
    fewer = gguf_config(metadata() | tokenizer, vocab_size=72, tensor_names=TENSORS)
    assert (fewer.vocab_size, fewer.num_real_tokens) == (72, 6)


def test_a_token_that_only_looks_like_padding_stays():
    tokens, types = ["a", "[PAD1]"], np.array([1, 4])
    tokenizer = {"tokenizer.ggml.tokens": tokens, "tokenizer.ggml.token_type": types}
    found = gguf_config(metadata() | tokenizer, vocab_size=2, tensor_names=TENSORS)
    assert found.num_real_tokens == 2


def test_more_tokens_than_embedding_rows_are_refused():
    tokenizer = {"tokenizer.ggml.tokens": list("abc")}
    with pytest.raises(CheckpointError, match=r"3 entries.*2 rows"):
        gguf_config(metadata() | tokenizer, vocab_size=2, tensor_names=TENSORS)


def test_end_of_turn_ends_a_sequence_too():
    ids = {
        "tokenizer.ggml.bos_token_id": 5,
        "tokenizer.ggml.eos_token_id": 7,
        "tokenizer.ggml.eot_token_id": 9,
        "tokenizer.ggml.eom_token_id": 7,
    }
    found = gguf_config(metadata() | ids, vocab_size=10, tensor_names=TENSORS)
    assert (found.bos_token_id, found.eos_token_ids) == (5, (7, 9))
