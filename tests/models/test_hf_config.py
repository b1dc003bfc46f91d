"""config.json: both spellings of every rope setting, layer kinds, and refusals by name."""

from __future__ import annotations

import json

import pytest

from infopt.errors import CheckpointError, UnsupportedModelError
from infopt.models.hf_config import hf_config, hf_stored_dtype, read_json

SIZES = {
    "vocab_size": 320,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 4096,
}

LLAMA3 = {
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 512,
    "rope_type": "llama3",
}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 1024}


def config(model_type: str = "llama", **changes):
    return hf_config({"model_type": model_type} | SIZES | changes)


@pytest.mark.parametrize(
    "scaling",
    [LLAMA3, YARN, {"rope_type": "linear", "factor": 2.0}, {"rope_type": "dynamic", "factor": 2.0}],
    ids=lambda scaling: scaling["rope_type"],
)
def test_rope_scaling_is_the_same_in_the_old_and_the_new_spelling(scaling):
    old = config(rope_theta=5e5, rope_scaling=scaling)
    new = config(rope_parameters=scaling | {"rope_theta": 5e5})
    assert old == new
    assert old.rope.theta == 5e5
    assert dict(old.rope.scaling) == scaling


def test_the_oldest_spelling_names_the_type_type():
    found = config(rope_theta=1e4, rope_scaling={"type": "linear", "factor": 2.0})
    assert found.rope.scaling == {"rope_type": "linear", "factor": 2.0}


@pytest.mark.parametrize(
    "changes",
    [
        {"rope_theta": 5e5},
        {"rope_theta": 5e5, "rope_scaling": None},
        {"rope_parameters": {"rope_type": "default", "rope_theta": 5e5}},
        {"rope_parameters": {"rope_theta": 5e5}},
    ],
)
def test_plain_rope_in_all_spellings(changes):
    found = config(**changes)
    assert (found.rope.theta, found.rope.scaling, found.rope_window) == (5e5, None, None)


def test_yarn_without_an_original_length_takes_the_models_own():
    found = config(rope_scaling={"rope_type": "yarn", "factor": 4.0})
    assert found.rope.scaling["original_max_position_embeddings"] == 4096


@pytest.mark.parametrize("kind", ["mrope", "su", "proportional"])
def test_an_unknown_rope_type_is_refused_by_name(kind):
    with pytest.raises(UnsupportedModelError, match=f"'{kind}'.*default, linear"):
        config(rope_scaling={"rope_type": kind, "factor": 2.0})


def test_partly_rotated_heads_are_refused():
    with pytest.raises(UnsupportedModelError, match="part of each head"):
        config(partial_rotary_factor=0.5)


def test_gemma3_ropes_in_the_old_and_the_new_spelling():
    linear = {"rope_type": "linear", "factor": 8.0}
    old = config(
        "gemma3_text",
        rope_theta=1e6,
        rope_local_base_freq=1e4,
        rope_scaling=linear,
        sliding_window_pattern=2,
    )
    new = config(
        "gemma3_text",
        rope_parameters={
            "full_attention": linear | {"rope_theta": 1e6},
            "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
        },
        layer_types=["sliding_attention", "full_attention"] * 2,
    )
    assert old == new
    assert (old.rope.theta, old.rope.scaling) == (1e6, linear)
    assert (old.rope_window.theta, old.rope_window.scaling) == (1e4, None)
    assert old.layer_kinds == ("window", "full") * 2


def test_gemma3_with_a_vision_tower_is_read_from_its_text_config():
    text = SIZES | {"query_pre_attn_scalar": 128, "sliding_window": 64, "model_type": "gemma3_text"}
    found = hf_config({"model_type": "gemma3", "text_config": text, "vision_config": {}})
    assert found.family == "gemma3_text"
    assert found.attention_scale == 128**-0.5
    assert found.tie_word_embeddings
    assert found.head_dim == 256  # left out above: the family's default, not hidden / heads
    assert found.embedding_scale == 8.0


def test_fields_left_out_have_the_familys_defaults():
    assert config("llama").head_dim == 16
    assert config("qwen3").head_dim == 128
    assert config("mistral").sliding_window == 4096
    assert config("llama").rms_norm_eps == 1e-6


def test_mistral_has_one_window_for_all_layers_or_none():
    assert config("mistral", sliding_window=32).layer_kinds == ("window",) * 4
    found = config("mistral", sliding_window=None)
    assert (found.layer_kinds, found.sliding_window) == (("full",) * 4, None)


@pytest.mark.parametrize("model_type", ["qwen2", "qwen3"])
def test_qwen_windows_start_at_max_window_layers(model_type):
    window = {"sliding_window": 32, "max_window_layers": 3}
    on = config(model_type, use_sliding_window=True, **window)
    assert on.layer_kinds == ("full", "full", "full", "window")
    assert on.sliding_window == 32
    off = config(model_type, use_sliding_window=False, **window)
    assert (off.layer_kinds, off.sliding_window) == (("full",) * 4, None)


def test_llama_has_no_window_whatever_the_file_says():
    assert config("llama", sliding_window=32).sliding_window is None


def test_unknown_layer_types_are_refused_by_name():
    with pytest.raises((UnsupportedModelError, CheckpointError), match="chunked_attention"):
        config("qwen3", layer_types=["chunked_attention"] * 4)


@pytest.mark.parametrize(
    ("model_type", "changes", "expected"),
    [
        ("llama", {}, (False, False, False)),
        ("llama", {"attention_bias": True, "mlp_bias": True}, (True, True, True)),
        ("qwen2", {}, (True, False, False)),
        ("qwen3", {"attention_bias": True}, (True, True, False)),
        ("mistral", {}, (False, False, False)),
    ],
)
def test_biases(model_type, changes, expected):
    found = config(model_type, **changes)
    assert (found.qkv_bias, found.output_bias, found.mlp_bias) == expected


def test_an_unsupported_architecture_is_named_with_the_supported_ones():
    with pytest.raises(UnsupportedModelError, match=r"'gpt_oss'.*gemma3_text, llama, mistral"):
        config("gpt_oss")


def test_settings_that_are_not_computed_are_refused_by_name():
    with pytest.raises(UnsupportedModelError, match="use_bidirectional_attention"):
        config("gemma3_text", use_bidirectional_attention=True)


def test_an_unknown_activation_is_refused_by_name():
    with pytest.raises(UnsupportedModelError, match="'relu'"):
        config(hidden_act="relu")


@pytest.mark.parametrize("changes", [{"hidden_size": "big"}, {"hidden_size": 66}])
def test_values_that_make_no_model_are_reported(changes):
    with pytest.raises(CheckpointError, match="llama"):
        config(**changes)


def test_key_value_heads_that_do_not_divide_are_reported():
    with pytest.raises(CheckpointError, match=r"4 query heads.*3 key/value heads"):
        config(num_key_value_heads=3)


def test_generation_config_decides_what_ends_a_sequence():
    raw = {"model_type": "llama", "eos_token_id": 2} | SIZES
    assert hf_config(raw).eos_token_ids == (2,)
    assert hf_config(raw, generation={"eos_token_id": [2, 9]}).eos_token_ids == (2, 9)
    assert hf_config(raw, generation={}).eos_token_ids == (2,)
    assert hf_config(raw | {"eos_token_id": None}).eos_token_ids == ()


def test_real_tokens_are_those_of_the_tokenizer_up_to_the_embedding_rows():
    raw = {"model_type": "llama"} | SIZES
    assert hf_config(raw).num_real_tokens == 320
    assert hf_config(raw, num_real_tokens=300).num_real_tokens == 300
    assert hf_config(raw, num_real_tokens=321).num_real_tokens == 320


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ({"dtype": "bfloat16"}, "bfloat16"),
        ({"torch_dtype": "torch.float16"}, "float16"),
        ({"text_config": {"dtype": "bfloat16"}}, "bfloat16"),
        ({}, "unknown"),
    ],
)
def test_stored_dtype(tmp_path, content, expected):
    (tmp_path / "config.json").write_text(json.dumps(content))
    assert hf_stored_dtype(tmp_path) == expected


@pytest.mark.parametrize(("content", "message"), [("[1]", "JSON object"), ("{", "valid JSON")])
def test_a_file_that_is_no_json_object_is_reported(tmp_path, content, message):
    (tmp_path / "config.json").write_text(content)
    with pytest.raises(CheckpointError, match=message):
        read_json(tmp_path / "config.json")
    with pytest.raises(CheckpointError, match=r"no other\.json"):
        read_json(tmp_path / "other.json")
