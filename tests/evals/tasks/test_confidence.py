"""Confidence of a choice against sums worked out by hand."""

from __future__ import annotations

import pytest

from infopt.evals.tasks.base import ChoiceItem
from infopt.evals.tasks.confidence import answer_item, fits

ITEM = ChoiceItem("colour", "The sky is", (" blue", " green", " red"))


def test_a_right_answer(make_judge):
    llm = make_judge(lambda text: -0.5 if text.endswith("blue") else -2.0)
    answer = answer_item(llm, ITEM, "none")
    assert answer.outcome.correct
    assert answer.mean_logprob == pytest.approx(-0.5)
    # " blue" has 5 tokens that are scored, the runner-up " red" has 4.
    assert answer.margin == pytest.approx((-0.5 * 5 + 2.0 * 4) / 5)


def test_a_wrong_answer_can_be_sure_of_itself(make_judge):
    llm = make_judge(lambda text: -0.1 if text.endswith("green") else -3.0)
    answer = answer_item(llm, ITEM, "none")
    assert not answer.outcome.correct
    assert answer.outcome.prediction == " green"
    assert answer.mean_logprob == pytest.approx(-0.1)
    assert answer.margin == pytest.approx((-0.1 * 6 + 3.0 * 4) / 6)


def test_the_prompt_is_scored_without_its_first_token_and_without_the_choice(make_judge):
    llm = make_judge(lambda text: -0.7)
    assert answer_item(llm, ITEM, "none").prompt_logprob == pytest.approx(-0.7)


def test_items_that_are_too_long_do_not_fit(make_writer):
    assert fits(make_writer(str, max_model_len=16), ITEM)
    assert not fits(make_writer(str, max_model_len=15), ITEM)
    assert not fits(make_writer(str), ChoiceItem("short", "T", (" a", " b")))
