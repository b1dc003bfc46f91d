import random
import re

import pytest

from infopt.errors import ConfigError
from infopt.evals.tasks.arithmetic import (
    CHOOSE,
    EXAMPLES,
    WRITE,
    ArithmeticGenerateTask,
    ArithmeticTask,
    distractors,
    questions,
)

OPERATORS = {"+": int.__add__, "-": int.__sub__, "*": int.__mul__}


def calculate(question: str) -> int:
    a, operator, b = question.split()
    return OPERATORS[operator](int(a), int(b))


@pytest.mark.parametrize("level", [CHOOSE, WRITE])
def test_results_are_right_and_never_negative(level):
    made = questions(level, 150, seed=0)
    assert all(calculate(q) == answer >= 0 for q, answer in made)
    assert len({q for q, _ in made}) == 150
    assert [q.split()[1] for q, _ in made[:6]] == ["+", "-", "*", "+", "-", "*"]


@pytest.mark.parametrize("num_items", [1, 2, 3, 4, 100])
def test_as_many_as_asked_for(num_items):
    assert len(questions(WRITE, num_items, seed=3)) == num_items


def test_solved_examples_are_right_and_never_asked():
    solved = [line.split(" = ") for line in EXAMPLES.splitlines()]
    assert all(calculate(q) == int(answer) for q, answer in solved)
    asked = {q for seed in range(5) for q, _ in questions(WRITE, 180, seed)}
    assert not asked & {q for q, _ in solved}


def test_too_many_questions_are_refused():
    """Pins an endless search for new questions where there are none left."""
    with pytest.raises(ConfigError, match="num_items is too large"):
        questions(WRITE, 500, seed=0)


@pytest.mark.parametrize("answer", [*range(1, 120), 998, 999, 1000, 4851])
def test_distractors_differ_from_the_answer_and_have_its_length(answer):
    wrong = distractors(answer, random.Random(0))
    assert len({answer, *wrong}) == 4
    assert all(len(str(n)) == len(str(answer)) for n in wrong)


def test_the_seed_decides(make_bigram):
    task = ArithmeticTask()
    assert task.items(20, seed=1) == task.items(20, seed=1)
    assert task.items(20, seed=1) != task.items(20, seed=2)
    writing = ArithmeticGenerateTask()
    assert writing.items(make_bigram(), 9, seed=1) == writing.items(make_bigram(), 9, seed=1)


def test_a_model_that_calculates_scores_everything(make_judge, make_writer):
    def judge(text: str) -> float:
        question, answer = text.splitlines()[-1].split(" = ")
        return -0.1 if calculate(question) == int(answer) else -1.0

    chosen = ArithmeticTask().evaluate(make_judge(judge), num_items=30, use_tqdm=False)
    assert chosen.score == 1.0

    def complete(prompt: str) -> str:
        return f" {calculate(prompt.splitlines()[-1].removesuffix(' ='))}\n"

    written = ArithmeticGenerateTask().evaluate(make_writer(complete), num_items=30, use_tqdm=False)
    assert written.score == 1.0


@pytest.mark.parametrize("text", [" {0}0", " x", "", " -{0}", " 1{0}"])
def test_other_numbers_are_wrong(make_writer, text):
    task = ArithmeticGenerateTask()

    def complete(prompt: str) -> str:
        return text.format(calculate(prompt.splitlines()[-1].removesuffix(" =")))

    assert task.evaluate(make_writer(complete), num_items=9, use_tqdm=False).score == 0.0


def test_prompts_end_without_a_space():
    """A space at the end would make " 7" two tokens that the model has never seen so."""
    assert all(re.search(r"\d =$", item.prompt) for item in ArithmeticTask().items(5, 0))
