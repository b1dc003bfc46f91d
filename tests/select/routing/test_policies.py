"""Policies one by one: what they need, what they decide, what they refuse."""

from __future__ import annotations

import math

import numpy as np
import pytest

from infopt.errors import ConfigError, MeasurementError
from infopt.select.routing import (
    CascadePolicy,
    ClassPolicy,
    Confidence,
    LengthPolicy,
    PerplexityPolicy,
    PromptClass,
    RandomPolicy,
    RouteRequest,
    confidence_of,
)

PAIR = {"cheap": "small", "strong": "large"}


def requests(count: int = 2000) -> list[RouteRequest]:
    return [RouteRequest(f"prompt {i}") for i in range(count)]


@pytest.mark.parametrize("share", [0.0, 0.2, 0.5, 1.0])
def test_random_sends_its_share_and_every_prompt_always_to_the_same(share):
    policy = RandomPolicy.of_share(**PAIR, share=share)
    models = [policy.decide(r).model for r in requests()]
    sent = models.count("large") / len(models)
    assert sent == pytest.approx(share, abs=4 * math.sqrt(share * (1 - share) / 2000))
    assert [policy.decide(r).model for r in requests()] == models


def test_random_needs_are_uniform_and_differ_by_seed():
    first = np.array([RandomPolicy(**PAIR).need(r) for r in requests()])
    other = np.array([RandomPolicy(**PAIR, seed=1).need(r) for r in requests()])
    quantiles = np.quantile(first, np.linspace(0.1, 0.9, 9))
    assert quantiles == pytest.approx(np.linspace(0.1, 0.9, 9), abs=0.05)
    assert abs(np.corrcoef(first, other)[0, 1]) < 0.1
    assert first.min() > 0
    assert first.max() <= 1


def test_length_counts_characters():
    policy = LengthPolicy(**PAIR, threshold=3)
    assert [policy.decide(RouteRequest(t)).model for t in ("ab", "abc", "äöü")] == [
        "small",
        "large",
        "large",
    ]
    assert policy.decide(RouteRequest("abc")).reason == "length: need 3 >= 3"


def classes(**changes) -> ClassPolicy:
    values = PAIR | {
        "classes": (
            PromptClass("code", r"^def ", model="coder"),
            PromptClass("sum", r"\d \+ \d", need=0.7),
            PromptClass("hello", r"hello", need=0.1),
        )
    }
    return ClassPolicy(**(values | changes))


@pytest.mark.parametrize(
    ("prompt", "model", "label"),
    [
        ("please:\ndef f(): 1 + 1", "coder", "class:code"),
        ("hello, 1 + 1", "large", "class:sum"),
        ("hello", "small", "class:hello"),
        ("what", "small", "class:other"),
    ],
)
def test_the_first_class_that_matches_counts(prompt, model, label):
    decision = classes().decide(RouteRequest(prompt))
    assert (decision.model, decision.label) == (model, label)
    assert decision.reason.isascii()


def test_classes_may_name_further_models():
    assert classes().models == ("small", "large", "coder")


def test_a_class_that_names_the_strong_model_needs_it():
    policy = classes(classes=({"name": "a", "pattern": "a", "model": "large"},))
    assert policy.need(RouteRequest("a")) == 1
    assert policy.need(RouteRequest("b")) == 0


def test_prompts_beyond_the_searched_beginning_are_in_no_class():
    assert classes().decide(RouteRequest(" " * 30_000 + "hello")).label == "class:other"


@pytest.mark.parametrize(
    ("item", "message"),
    [
        ({"name": "a b", "pattern": "a", "need": 1}, "name of a class"),
        ({"name": "other", "pattern": "a", "need": 1}, "none called other"),
        ({"name": "a", "pattern": "(", "need": 1}, "pattern"),
        ({"name": "a", "pattern": "a" * 501, "need": 1}, "at most 500"),
        ({"name": "a", "pattern": "a"}, "either need or model"),
        ({"name": "a", "pattern": "a", "need": 1, "model": "x"}, "either need or model"),
        ({"name": "a", "pattern": "a", "need": math.nan}, "finite"),
        ({"name": "a", "pattem": "a", "need": 1}, "pattern"),
        ({"name": "a", "need": 1}, "lacks its pattern"),
        ("a", "must be a mapping"),
    ],
)
def test_bad_classes_are_named(item, message):
    with pytest.raises(ConfigError, match=message):
        classes(classes=(item,))


def test_two_classes_of_one_name():
    with pytest.raises(ConfigError, match="one class 'a'"):
        classes(classes=[{"name": "a", "pattern": "a", "need": 1}] * 2)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"strong": "small"}, "are both 'small'"),
        ({"cheap": ""}, "must be a name"),
        ({"cheap": 3}, "must be a name"),
        ({"threshold": math.inf}, "finite"),
        ({"threshold": True}, "finite"),
        ({"threshold": "1"}, "finite"),
    ],
)
def test_bad_values_are_named(changes, message):
    with pytest.raises(ConfigError, match=message):
        LengthPolicy(**(PAIR | {"threshold": 1} | changes))


def test_bad_shares_and_measures_are_named():
    with pytest.raises(ConfigError, match="share must be"):
        RandomPolicy.of_share(**PAIR, share=1.1)
    with pytest.raises(ConfigError, match="mean_logprob, margin"):
        CascadePolicy(**PAIR, threshold=1, measure="mean")  # type: ignore[arg-type]


def test_perplexity_is_the_surprise_of_the_prompt():
    policy = PerplexityPolicy(**PAIR, threshold=2.0)
    assert policy.need(RouteRequest("", prompt_logprob=-2.5)) == 2.5
    assert policy.decide(RouteRequest("", prompt_logprob=-1.5)).model == "small"
    with pytest.raises(MeasurementError, match="needs prompt_logprob"):
        policy.need(RouteRequest(""))


def test_cascade_asks_again_where_the_answer_was_doubtful():
    sure, unsure = Confidence(-0.1, 3.0), Confidence(-1.2, 0.2)
    for policy in (
        CascadePolicy(**PAIR, threshold=0.5),
        CascadePolicy(**PAIR, threshold=0.2, measure="margin"),
    ):
        assert policy.decide(RouteRequest("", confidence=sure)).model == "small"
        assert policy.decide(RouteRequest("", confidence=unsure)).model == "large"


def test_margin_doubt_is_the_share_of_the_runner_up():
    policy = CascadePolicy(**PAIR, threshold=0.2, measure="margin")
    margin = math.log(0.8 / 0.2)
    assert policy.need(RouteRequest("", confidence=Confidence(0.0, margin))) == pytest.approx(0.2)
    assert policy.need(RouteRequest("", confidence=Confidence(0.0, 1e6))) >= 0


def test_confidence_of_a_generated_answer():
    confidence = confidence_of([-0.5, -1.5], [-2.0, -1.0])
    assert confidence.mean_logprob == -1.0
    assert confidence.margin == pytest.approx(0.5)
    with pytest.raises(MeasurementError, match="needs tokens"):
        confidence_of([], [])
    with pytest.raises(MeasurementError, match="one runner-up each"):
        confidence_of([-1.0], [])
    with pytest.raises(MeasurementError, match="mean_logprob is nan"):
        confidence_of([math.nan], [-1.0])
