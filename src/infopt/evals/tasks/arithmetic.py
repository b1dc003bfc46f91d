"""Arithmetic: generated sums, differences and products, answered by choosing and by writing."""

from __future__ import annotations

import random
import re

from infopt.evals.model import EvalModel
from infopt.evals.tasks.base import TASKS, ChoiceItem, ChoiceTask, GenerationItem, GenerationTask

EXAMPLES = "3 + 4 = 7\n15 - 6 = 9\n8 * 2 = 16\n21 + 17 = 38\n"
"""Solved lines before each question; none of them is ever asked."""

_NUM_CHOICES = 4
_NUMBER = re.compile(r"-?\d+")


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
            for question, answer in questions(num_items, seed)
        ]


@TASKS.register("arithmetic_generate")
class ArithmeticGenerateTask(GenerationTask):
    """Writes the result; the first number of the line counts."""

    name = "arithmetic_generate"

    def items(self, llm: EvalModel, num_items: int, seed: int) -> list[GenerationItem]:
        """Return the same questions as :class:`ArithmeticTask`."""
        return [
            GenerationItem(question, f"{EXAMPLES}{question} =", str(answer), 8, stop=("\n",))
            for question, answer in questions(num_items, seed)
        ]

    def is_correct(self, item: GenerationItem, text: str) -> bool:
        """Compare the first number with the answer."""
        found = _NUMBER.search(text)
        return found is not None and found.group() == item.answer


def questions(num_items: int, seed: int) -> list[tuple[str, int]]:
    """Return different questions with their results (never negative), operators in turn."""
    rng = random.Random(f"arithmetic-{seed}")
    makers = (_sum, _difference, _product)
    found: dict[str, int] = {}
    while len(found) < num_items:
        question, answer = makers[len(found) % len(makers)](rng)
        if f"{question} =" not in EXAMPLES:
            found[question] = answer
    return list(found.items())


def distractors(answer: int, rng: random.Random) -> list[int]:
    """Return three wrong results with as many digits as the right one."""
    digits = [int(d) for d in str(answer)]
    slips = {answer + step for step in (-10, -2, -1, 1, 2, 10)}
    slips.add(int("".join(map(str, reversed(digits)))))  # digits written backwards
    slips |= {answer + step for step in (-4, -3, 3, 4)}
    usable = [n for n in slips if n >= 0 and n != answer and len(str(n)) == len(digits)]
    return rng.sample(sorted(usable), _NUM_CHOICES - 1)


def _sum(rng: random.Random) -> tuple[str, int]:
    a, b = rng.randint(2, 499), rng.randint(2, 499)
    return f"{a} + {b}", a + b


def _difference(rng: random.Random) -> tuple[str, int]:
    a, b = sorted((rng.randint(2, 499), rng.randint(2, 499)), reverse=True)
    return f"{a} - {b}", a - b


def _product(rng: random.Random) -> tuple[str, int]:
    a, b = rng.randint(2, 99), rng.randint(2, 12)
    return f"{a} * {b}", a * b
