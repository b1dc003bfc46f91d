"""`EngineConfig`: frozen, checked, and with no silent key."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from infopt import EngineConfig
from infopt.errors import ConfigError, check_known_keys, nearest

BAD = {
    "model": ["", None, 5, Path("folder")],
    "dtype": ["fp32", None, 5, ["float32"]],
    "device": ["gpu"],
    "backend": ["fast"],
    "cuda_graphs": ["on", True, None],
    "scheduling": ["dynamic"],
    "preemption": ["drop"],
    "max_num_seqs": [0, -1, 1.5, True, "8", None],
    "max_num_batched_tokens": [0],
    "max_model_len": [0, 1.5],
    "block_size": [0, 16.0],
    "num_kv_pages": [0, -1],
    "kv_cache_memory_gib": [-1, float("nan"), float("inf"), "1", True],
    "swap_memory_gib": [-0.5, float("inf")],
    "max_num_waiting": [0],
    "num_threads": [0],
    "seed": [-1, 1.5],
    "expert_stats": ["yes", 1, None],
    "enable_prefix_caching": [1, "yes", None],
    "skip_tokenizer_init": [0],
    "check_integrity": [None],
    "quantization": [None, 4, ""],
    "speculative": ["ngram", 5, ["ngram"]],
    "kv_eviction": ["snapkv", 5, ["snapkv"]],
}


@pytest.mark.parametrize(
    ("field", "value"), [(field, value) for field, values in BAD.items() for value in values]
)
def test_a_bad_value_is_refused_by_name(field: str, value: object) -> None:
    with pytest.raises(ConfigError, match=field) as caught:
        EngineConfig(**({"model": "m"} | {field: value}))
    assert caught.value.field == field
    if isinstance(value, str) and field not in ("model", "quantization"):
        assert repr(value) in str(caught.value)


def test_choices_are_listed_with_the_nearest() -> None:
    with pytest.raises(ConfigError, match=r"Did you mean 'static'.*continuous, static") as caught:
        EngineConfig("m", scheduling="statc")  # type: ignore[arg-type]
    assert caught.value.value == "statc"


def test_a_step_must_be_able_to_decode_every_sequence() -> None:
    with pytest.raises(ConfigError, match="max_num_batched_tokens=8") as caught:
        EngineConfig("m", max_num_batched_tokens=8, max_num_seqs=9)
    assert caught.value.field == "max_num_batched_tokens"
    EngineConfig("m", max_num_batched_tokens=9, max_num_seqs=9)


def test_it_is_frozen() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        EngineConfig("m").seed = 3  # type: ignore[misc]


def test_plain_data_gives_an_equal_config() -> None:
    config = EngineConfig("m", dtype="float32", num_kv_pages=7, enable_prefix_caching=False)
    assert EngineConfig.from_dict(config.to_dict()) == config
    assert list(config.to_dict()) == EngineConfig.field_names()


@pytest.mark.parametrize("make", ["from_dict", "replace"])
def test_unknown_options_are_errors_with_the_nearest_name(make: str) -> None:
    """Pins: a misspelt option was dropped without a word."""
    with pytest.raises(ConfigError, match=r"max_num_seq'.*Did you mean 'max_num_seqs'") as caught:
        if make == "from_dict":
            EngineConfig.from_dict({"model": "m", "max_num_seq": 3})
        else:
            EngineConfig("m").replace(max_num_seq=3)
    assert caught.value.field == "max_num_seq"
    assert "Valid options" in str(caught.value)


def test_a_model_is_needed() -> None:
    with pytest.raises(ConfigError, match="needs a model"):
        EngineConfig.from_dict({})


def test_replaced_values_are_checked_too() -> None:
    assert EngineConfig("m").replace(seed=4).seed == 4
    with pytest.raises(ConfigError, match="seed"):
        EngineConfig("m").replace(seed=-4)


def test_nearest_suggests_only_what_is_close() -> None:
    assert nearest("temperatur", ["temperature", "top_p"]) == " Did you mean 'temperature'?"
    assert nearest("zzz", ["temperature", "top_p"]) == ""
    check_known_keys({"a": 1}, {"a", "b"}, "test")


@pytest.mark.parametrize("given", [None, "a", 3, 0.4, [], ["a"]])
def test_what_is_no_mapping_has_no_options(given: object) -> None:
    """Pins: a bare value where options belong ended in a TypeError of Python's."""
    with pytest.raises(ConfigError, match="prices must be a mapping of options"):
        check_known_keys(given, ["machine"], "prices")
