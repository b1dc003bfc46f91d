"""`kv_eviction={...}`: what is understood, what is refused, and how many rows it keeps."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest

from infopt.cache.eviction import PRESSES, read_eviction
from infopt.errors import ConfigError

METHODS = (
    "expected_attention",
    "h2o",
    "knorm",
    "pyramid",
    "random",
    "snapkv",
    "streaming",
    "tova",
)


def budgets(options: dict[str, Any], num_prompt: int, num_groups: int = 1) -> list[int]:
    config = read_eviction(options)
    assert config is not None
    return config.budgets(num_prompt, num_groups)


def test_all_methods_are_filed_and_labelled() -> None:
    read_eviction(None)
    assert tuple(PRESSES) == METHODS
    for name in METHODS:
        cls = PRESSES.get(name)
        assert cls.needs <= {"keys", "values", "queries", "attention"}
        assert isinstance(cls.query_aware, bool)
        config = read_eviction({"method": name, "budget": 0.5})
        assert config is not None and config.decode == cls.decodes
    aware = {name for name in METHODS if PRESSES.get(name).query_aware}
    assert aware == {"snapkv", "tova", "pyramid"}
    assert {n for n in METHODS if PRESSES.get(n).decodes} == {"streaming", "h2o", "tova"}


@pytest.mark.parametrize("options", [None, {"method": "none"}])
def test_nothing_is_asked_for(options: Any) -> None:
    assert read_eviction(options) is None


@pytest.mark.parametrize(
    ("options", "field", "words"),
    [
        ({}, "method", "name of a method"),
        ({"method": "none", "budget": 0.5}, "method", "name of a method"),
        ({"method": 3, "budget": 0.5}, "method", "name of a method"),
        ({"method": "snap", "budget": 0.5}, "KV press", "snapkv"),
        ({"method": "snapkv"}, "budget", "exactly one"),
        ({"method": "snapkv", "budget": 0.5, "budget_tokens": 9}, "budget", "exactly one"),
        ({"method": "snapkv", "budget": 0}, "budget", "(0, 1]"),
        ({"method": "snapkv", "budget": 1.5}, "budget", "(0, 1]"),
        ({"method": "snapkv", "budget": True}, "budget", "(0, 1]"),
        ({"method": "snapkv", "budget": float("nan")}, "budget", "(0, 1]"),
        ({"method": "snapkv", "budget_tokens": 0}, "budget_tokens", ">= 1"),
        ({"method": "snapkv", "budget_tokens": 2.5}, "budget_tokens", ">= 1"),
        ({"method": "snapkv", "budget": 0.5, "windw": 3}, "windw", "'window'"),
        ({"method": "snapkv", "budget": 0.5, "window": 0}, "window", ">= 1"),
        ({"method": "snapkv", "budget": 0.5, "kernel": 4}, "kernel", "odd"),
        ({"method": "snapkv", "budget": 0.5, "decode": True}, "decode", "end of the prompt"),
        ({"method": "streaming", "budget": 0.5, "decode": 1}, "decode", "true or false"),
        ({"method": "streaming", "budget": 0.5, "interval_pages": 0}, "interval_pages", ">= 1"),
        ({"method": "streaming", "budget": 0.5, "sinks": -1}, "sinks", ">= 0"),
        (
            {"method": "streaming", "budget": 0.5, "positions": "cache"},
            "positions",
            "'true' or 'rel",
        ),
        ({"method": "streaming", "budget": 0.5, "protected": -1}, "protected", "spans"),
        ({"method": "streaming", "budget": 0.5, "protected": "ab"}, "protected", "spans"),
        ({"method": "streaming", "budget": 0.5, "protected": [[3, 3]]}, "protected", "spans"),
        ({"method": "streaming", "budget": 0.5, "protected": [[0, 1.5]]}, "protected", "spans"),
        ({"method": "streaming", "budget": 0.5, "protected": [4]}, "protected", "spans"),
        ({"method": "random", "budget": 0.5, "seed": "x"}, "seed", ">= 0"),
        ({"method": "h2o", "budget": 0.5, "recent": 2}, "recent", "[0, 1]"),
        ({"method": "expected_attention", "budget": 0.5, "window": 1}, "window", ">= 2"),
        ({"method": "expected_attention", "budget": 0.5, "covariance": 1}, "covariance", "true"),
        ({"method": "pyramid", "budget": 0.5, "base": "pyramid"}, "base", "cannot rest"),
        ({"method": "pyramid", "budget": 0.5, "base": "snap"}, "KV press", "snapkv"),
        ({"method": "pyramid", "budget": 0.5, "base_options": 3}, "base_options", "mapping"),
        ({"method": "pyramid", "budget": 0.5, "base_options": {"x": 1}}, "x", "Unknown option"),
        ({"method": "pyramid", "budget": 0.5, "steepness": 0.5}, "steepness", "1 to 1000"),
        ({"method": "pyramid", "budget": 0.5, "steps": 1}, "steps", ">= 2"),
    ],
)
def test_bad_options_are_named(options: dict[str, Any], field: str, words: str) -> None:
    with pytest.raises(ConfigError) as caught:
        read_eviction(options)
    assert words in str(caught.value)
    assert caught.value.field is not None and caught.value.field.endswith(field)


def test_a_share_is_of_the_prompt_and_rounded_down() -> None:
    assert budgets({"method": "knorm", "budget": 0.5}, 101) == [50]
    assert budgets({"method": "knorm", "budget": 0.29}, 100) == [29]  # 0.29 * 100 < 29
    assert budgets({"method": "knorm", "budget": 0.01}, 5) == [1]
    assert budgets({"method": "knorm", "budget_tokens": 40}, 5) == [40]


def test_what_must_stay_raises_the_budget() -> None:
    assert budgets({"method": "snapkv", "budget_tokens": 3, "window": 16}, 100) == [16]
    assert budgets({"method": "streaming", "budget_tokens": 2, "sinks": 4}, 100) == [5]
    spans = {"method": "knorm", "budget_tokens": 3, "protected": [[2, 6], [4, 9], [50, 60]]}
    assert budgets(spans, 52) == [7 + 2]
    assert budgets({"method": "knorm", "budget_tokens": 3, "protected": 8}, 5) == [5]


@pytest.mark.parametrize("mean", [25, 40, 90, 100])
@pytest.mark.parametrize("num_groups", [2, 3, 6])
def test_a_pyramid_falls_and_keeps_its_mean(mean: int, num_groups: int) -> None:
    options = {"method": "pyramid", "budget_tokens": mean, "base": "knorm"}
    shares = budgets(options, 100, num_groups)
    assert sum(shares) == mean * num_groups
    assert all(a >= b for a, b in pairwise(shares))
    assert max(shares) <= 100
    if mean == 40:
        assert shares[0] > 1.4 * mean and shares[-1] < 0.6 * mean
