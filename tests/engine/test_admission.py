"""Requests are checked before anything is queued; every refusal names field, values and limit."""

from __future__ import annotations

import pytest

from infopt import SamplingParams
from infopt.engine.admission import RequestChecker
from infopt.errors import CapacityError, PromptError, PromptTooLongError, SamplingParamsError


def check(num_prompt: int, limit: int = 64, pool: int = 10_000, **params) -> int:
    checker = RequestChecker(num_token_ids=100, max_model_len=limit, pool_tokens=pool)
    return checker.check([1] * num_prompt, SamplingParams(**({"max_tokens": None} | params)))


def test_prompt_and_output_beyond_the_limit_are_refused_with_all_three_numbers() -> None:
    """Pins: the message blamed a context length of limit - max_tokens."""
    with pytest.raises(PromptTooLongError, match=r"9 tokens.*1020.*1024.*at most 1015") as caught:
        check(9, limit=1024, max_tokens=1020)
    assert caught.value.field == "max_tokens"
    assert check(9, limit=1024, max_tokens=1015) == 1015
    assert check(9, limit=1024) == 1015


@pytest.mark.parametrize(("num_prompt", "room"), [(62, 2), (63, 1), (64, None), (65, None)])
def test_the_prompt_must_leave_room_for_one_token(num_prompt: int, room: int | None) -> None:
    """Pins: the length of a prompt was not checked at the boundary."""
    if room is not None:
        assert check(num_prompt) == room
        return
    with pytest.raises(PromptTooLongError, match=rf"{num_prompt} tokens.*64") as caught:
        check(num_prompt)
    assert caught.value.field == "prompt"


def test_a_long_prompt_is_not_reported_as_a_negative_max_tokens() -> None:
    with pytest.raises(PromptTooLongError, match=r"70 tokens.*64") as caught:
        check(70)
    assert "-" not in str(caught.value)
    assert "max_tokens" not in str(caught.value)


def test_without_output_a_prompt_may_fill_the_limit() -> None:
    assert check(64, max_tokens=0) == 0
    with pytest.raises(PromptTooLongError, match=r"65 tokens"):
        check(65, max_tokens=0)


def test_the_pool_clamps_the_output_and_refuses_the_prompt() -> None:
    assert check(10, pool=32) == 22
    assert check(10, pool=32, max_tokens=45) == 22
    assert check(32, pool=32, max_tokens=0) == 0
    with pytest.raises(CapacityError, match=r"32 tokens.*pool holds 32") as caught:
        check(32, pool=32)
    assert caught.value.field == "prompt"


def test_min_tokens_must_fit() -> None:
    assert check(60, min_tokens=4) == 4
    with pytest.raises(PromptTooLongError, match="min_tokens=5") as caught:
        check(60, min_tokens=5)
    assert caught.value.field == "min_tokens"


@pytest.mark.parametrize("bad", [-1, 100, 10**12, 1.0, "a", None, True, [1]])
def test_ids_outside_the_vocabulary_are_refused(bad: object) -> None:
    checker = RequestChecker(num_token_ids=100, max_model_len=64, pool_tokens=64)
    with pytest.raises(PromptError) as caught:
        checker.check([1, bad, 2], SamplingParams())
    assert (caught.value.field, caught.value.value) == ("prompt", bad)


@pytest.mark.parametrize("bad", [[], (), None, 5, {1: 2}, {3}, b"ab"])
def test_what_is_no_list_of_ids_is_refused(bad: object) -> None:
    checker = RequestChecker(num_token_ids=100, max_model_len=64, pool_tokens=64)
    with pytest.raises(PromptError, match="prompt"):
        checker.check(bad, SamplingParams())


@pytest.mark.parametrize("params", [{"logit_bias": {100: 5}}, {"stop_token_ids": [3, 100]}])
def test_named_ids_outside_the_vocabulary_are_refused(params) -> None:
    """Pins: a bias for an id beyond the vocabulary killed the scheduler."""
    (field,) = params
    with pytest.raises(SamplingParamsError, match=rf"{field}.*100.*0 .. 99") as caught:
        check(3, **params)
    assert caught.value.field == field
    check(3, logit_bias={99: 5}, stop_token_ids=[0, 99])


def test_some_token_must_be_left_before_min_tokens() -> None:
    """Pins: with every token masked there was nothing to sample from."""
    checker = RequestChecker(4, max_model_len=64, pool_tokens=64, eos_token_ids=(0,))
    with pytest.raises(SamplingParamsError, match="min_tokens=1 masks all 4"):
        checker.check([1], SamplingParams(min_tokens=1, stop_token_ids=[1, 2, 3]))
    assert checker.check([1], SamplingParams(min_tokens=1, stop_token_ids=[1, 2])) == 16
    assert checker.check([1], SamplingParams(stop_token_ids=[1, 2, 3])) == 16
