"""Arithmetic: generated sums, differences and products, answered by choosing and by writing."""

from __future__ import annotations

import random
import re
from collections.abc import Callable
from typing import NamedTuple

from infopt.errors import ConfigError
from infopt.evals.model import EvalModel
from infopt.evals.tasks.base import TASKS, ChoiceItem, ChoiceTask, GenerationItem, GenerationTask

EXAMPLES = "3 + 4 = 7\n15 - 6 = 9\n8 * 2 = 16\n21 + 17 = 38\n"
"""Solved lines before each question; none of them is ever asked."""

_NUM_CHOICES = 4
_NUM_SECOND_FACTORS = 8  # 2 to 9
_MAX_EXAMPLES = 2  # solved lines of one operator
_NUMBER = re.compile(r"-?\d+")


class Level(NamedTuple):
    """How large the numbers are.

    Attributes:
        largest_term: Sums and differences are of 1 up to this.
        largest_factor: Products are of 2 up to this by 2 up to 9.
    """

    largest_term: int
    largest_factor: int


CHOOSE = Level(largest_term=499, largest_factor=99)
"""For choosing a result: SmolLM2-135M is right on 46 % of 120, chance is 25 %."""

WRITE = Level(largest_term=20, largest_factor=9)
"""For writing a result: the same model is right on 55 % of 60 (larger numbers: hardly ever)."""


@TASKS.register("arithmetic")
class ArithmeticTask(ChoiceTask):
    """Chooses a result among four numbers of equal length that differ by typical slips."""

    name = "arithmetic"

    def items(self, num_items: int, seed: int) -> list[ChoiceItem]:
        """Return ``num_items`` different questions with one right and three wrong results."""
        rng = random.Random(f"arithmetic-choices-{seed}")
        return [
            ChoiceItem(
                question,
                f"{EXAMPLES}{question} =",
                (f" {answer}", *(f" {wrong}" for wrong in distractors(answer, rng))),
            )
            for question, answer in questions(CHOOSE, num_items, seed)
        ]


@TASKS.register("arithmetic_generate")
class ArithmeticGenerateTask(GenerationTask):
    """Writes the result; the first number of the line counts."""

    name = "arithmetic_generate"

    def items(self, llm: EvalModel, num_items: int, seed: int) -> list[GenerationItem]:
        """Return ``num_items`` different questions."""
        return [
            GenerationItem(question, f"{EXAMPLES}{question} =", str(answer), 8, stop=("\n",))
            for question, answer in questions(WRITE, num_items, seed)
        ]

    def is_correct(self, item: GenerationItem, text: str) -> bool:
        """Compare the first number with the answer."""
        found = _NUMBER.search(text)
        return found is not None and found.group() == item.answer


def questions(level: Level, num_items: int, seed: int) -> list[tuple[str, int]]:
    """Return different questions with their results (never negative), operators in turn.

    Raises:
        ConfigError: If the level has fewer questions.
    """
    rng = random.Random(f"arithmetic-{seed}")
    pairs = level.largest_term**2
    products = (level.largest_factor - 1) * _NUM_SECOND_FACTORS
    per_kind = [
        _draw(_sum, level, pairs, rng, _share(num_items, 0)),
        _draw(_difference, level, pairs, rng, _share(num_items, 1)),
        _draw(_product, level, products, rng, _share(num_items, 2)),
    ]
    return [per_kind[i % 3][i // 3] for i in range(num_items)]


def distractors(answer: int, rng: random.Random) -> list[int]:
    """Return three wrong results with as many digits as the right one."""
    digits = [int(d) for d in str(answer)]
    slips = {answer + step for step in (-10, -2, -1, 1, 2, 10)}
    slips.add(int("".join(map(str, reversed(digits)))))  # digits written backwards
    slips |= {answer + step for step in (-4, -3, 3, 4)}
    usable = [n for n in slips if n >= 0 and n != answer and len(str(n)) == len(digits)]
    return rng.sample(sorted(usable), _NUM_CHOICES - 1)


def _share(num_items: int, kind: int) -> int:
    """Return how many of ``num_items`` dealt to three kinds in turn go to one of them."""
    return (num_items + 2 - kind) // 3


def _draw(
    maker: Callable[[Level, int], tuple[str, int]],
    level: Level,
    size: int,
    rng: random.Random,
    count: int,
) -> list[tuple[str, int]]:
    """Return ``count`` questions out of the ``size`` of a kind, without the solved examples."""
    if count + _MAX_EXAMPLES > size:
        raise ConfigError(
            f"num_items is too large: {count} questions of one operator are asked for, "
            f"{size - _MAX_EXAMPLES} exist.",
            field="num_items",
            value=count,
            remedy="Ask for fewer items.",
        )
    numbers = rng.sample(range(size), count + _MAX_EXAMPLES)
    drawn = [maker(level, number) for number in numbers]
    solved = EXAMPLES.splitlines()
    return [(q, answer) for q, answer in drawn if f"{q} = {answer}" not in solved][:count]


def _sum(level: Level, number: int) -> tuple[str, int]:
    a, b = divmod(number, level.largest_term)
    return f"{a + 1} + {b + 1}", a + b + 2


def _difference(level: Level, number: int) -> tuple[str, int]:
    a, b = divmod(number, level.largest_term)
    return f"{a + b + 2} - {b + 1}", a + 1


def _product(level: Level, number: int) -> tuple[str, int]:
    a, b = divmod(number, _NUM_SECOND_FACTORS)
    return f"{a + 2} * {b + 2}", (a + 2) * (b + 2)
