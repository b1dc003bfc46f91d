"""Sampling parameters: ranges, containers, and errors that name the field."""

from __future__ import annotations

import copy
import pickle

import pytest

from infopt import SamplingParams
from infopt.errors import ConfigError, SamplingParamsError

BAD = {
    "n": [0, -1, 257, 1.5, True, "2", None],
    "temperature": [-0.1, 100.1, float("nan"), float("inf"), "1", True, None],
    "top_p": [0.0, -0.1, 1.1, float("nan"), None],
    "top_k": [-2, 1.5, "5", None],
    "min_p": [-0.1, 1.1, float("nan")],
    "repetition_penalty": [0.0, -1.0, 100.5, float("inf")],
    "presence_penalty": [-2.1, 2.1],
    "frequency_penalty": [-2.1, 2.1, "1"],
    "logit_bias": [
        {-1: 5},
        {"-1": 5},
        {"abc": 5},
        {"5": "x"},
        {"5": 101},
        {5: -100.5},
        {5: float("nan")},
        {5: None},
        {5: "2.5"},
        {5: True},
        {True: 5},
        {5.7: 1.0},
        {"5.7": 1.0},
        [1, 2],
        "text",
        7,
    ],
    "seed": [1.5, "1", 2**64, -(2**63) - 1, True],
    "stop": ["", [""], [1], 5, ["a"] * 65, [None], b"x"],
    "stop_token_ids": [[-1], ["a"], [1.5], [True], 5, "ab"],
    "min_tokens": [-1, 1.5],
    "max_tokens": [-1, 1.5, "16"],
    "logprobs": [-1, 65, 1.5, True],
    "prompt_logprobs": [-1, 65],
    "prompt_logprobs_start": [-1, 1.5, True, 3],  # 3: nothing is reported
    "include_stop_str_in_output": [1, None],
    "ignore_eos": ["yes"],
    "detokenize": [0],
    "skip_special_tokens": ["yes", 1],
}


@pytest.mark.parametrize(
    ("field", "value"), [(field, value) for field, values in BAD.items() for value in values]
)
def test_a_bad_value_is_refused_by_name(field: str, value: object) -> None:
    with pytest.raises(SamplingParamsError, match=field) as caught:
        SamplingParams(**{field: value})
    assert caught.value.field == field


@pytest.mark.parametrize(
    ("field", "values"),
    [
        ("temperature", [0, 1e-9, 100]),
        ("top_p", [1e-9, 1]),
        ("top_k", [-1, 0, 10**9]),
        ("min_p", [0, 1]),
        ("repetition_penalty", [1e-3, 100]),
        ("presence_penalty", [-2, 2]),
        ("max_tokens", [0, None]),
        ("seed", [None, 0, -(2**63), 2**64 - 1]),
        ("logprobs", [None, 0, 64]),
        ("n", [1, 256]),
    ],
)
def test_the_ends_of_each_range_are_allowed(field: str, values: list[object]) -> None:
    for value in values:
        assert getattr(SamplingParams(**{field: value}), field) == value


@pytest.mark.parametrize("value", [None, {}, [], ()])
def test_empty_containers_are_the_same_as_leaving_them_out(value: object) -> None:
    """Pins: client libraries send empty containers by default and were refused."""
    for field in ("logit_bias", "stop", "stop_token_ids"):
        assert SamplingParams(**{field: value}) == SamplingParams()


def test_keys_of_a_bias_may_come_from_json() -> None:
    assert dict(SamplingParams(logit_bias={"5": 1, 7: 2.5}).logit_bias) == {5: 1.0, 7: 2.5}


def test_one_stop_string_is_a_list_of_one() -> None:
    assert SamplingParams(stop="ab").stop == ("ab",)
    assert SamplingParams(stop=["ab", "c"], stop_token_ids=[3]).stop_token_ids == (3,)


def test_containers_are_frozen_and_apart_from_the_caller() -> None:
    bias, stops = {5: 1.0}, ["a"]
    params = SamplingParams(logit_bias=bias, stop=stops)
    bias[6] = 2.0
    stops.append("b")
    assert (dict(params.logit_bias), params.stop) == ({5: 1.0}, ("a",))
    with pytest.raises(TypeError):
        params.logit_bias[7] = 1.0  # type: ignore[index]
    with pytest.raises(AttributeError):
        params.temperature = 2.0  # type: ignore[misc]


@pytest.mark.parametrize(
    "values",
    [
        {"min_tokens": 5, "max_tokens": 4},
        {"stop": "a", "detokenize": False},
    ],
)
def test_contradictions_are_refused(values) -> None:
    with pytest.raises(SamplingParamsError):
        SamplingParams(**values)
    assert SamplingParams(min_tokens=5, max_tokens=None).min_tokens == 5


def test_plain_data_copies_and_pickles_give_equal_params() -> None:
    """Pins: the frozen mapping inside could neither be copied nor sent to another process."""
    params = SamplingParams(n=2, logit_bias={3: 1.5}, stop=["x"], stop_token_ids=[4], seed=1)
    for other in (
        SamplingParams.from_dict(params.to_dict()),
        copy.deepcopy(params),
        pickle.loads(pickle.dumps(params)),
        params.replace(),
    ):
        assert other == params
    assert params.replace(n=3).n == 3
    assert params.replace(n=3).logit_bias == params.logit_bias


def test_unknown_keys_are_refused_with_the_nearest_name() -> None:
    with pytest.raises(ConfigError, match=r"temperatur.*temperature"):
        SamplingParams.from_dict({"temperatur": 1})


def test_greedy_is_temperature_zero() -> None:
    assert SamplingParams(temperature=0).is_greedy
    assert not SamplingParams(temperature=1e-9).is_greedy
