"""Code: HumanEval by likelihood (default) and by running what the model writes (on request)."""

from __future__ import annotations

import random

from infopt.errors import ConfigError
from infopt.evals.model import EvalModel
from infopt.evals.tasks.base import TASKS, ChoiceItem, ChoiceTask, GenerationItem, GenerationTask
from infopt.evals.tasks.human_eval import Problem, problems
from infopt.evals.tasks.mutate import mutants
from infopt.evals.tasks.sandbox import run_program

MAX_CHOICES = 8
"""Most choices per problem."""

_NUM_SIMILAR = 8
_STOP = ("\nclass", "\ndef", "\n#", "\nif", "\nprint", "\nassert", "\n@", "\nimport", "\nfrom")


@TASKS.register("code")
class CodeTask(ChoiceTask):
    """Tells the authors' solution from changed ones; takes the shortest problems first.

    Nothing is executed. Distractors differ from the solution in one token; where a body has too
    few tokens to change, bodies of other problems fill up. A change may happen to be harmless:
    of the 240 distractors of the 80 shortest problems (seed 0), 11 pass the problem's tests too.

    Args:
        num_choices: Solution and distractors per problem; each costs a pass over prompt and body.
    """

    name = "code"

    def __init__(self, num_choices: int = 4) -> None:
        """Keep the number of choices."""
        if not 2 <= num_choices <= MAX_CHOICES:
            raise ConfigError(
                f"num_choices must be from 2 to {MAX_CHOICES}, got {num_choices}.",
                field="num_choices",
                value=num_choices,
            )
        self.num_choices = num_choices

    def protocol(self, num_items: int, seed: int) -> str:
        """Return the sentence that reproduces a run."""
        return f"{super().protocol(num_items, seed)}/choices={self.num_choices}"

    def items(self, num_items: int, seed: int) -> list[ChoiceItem]:
        """Return the ``num_items`` shortest problems; the seed chooses the distractors."""
        return [_choice_item(problem, seed, self.num_choices) for problem in _shortest(num_items)]


@TASKS.register("code_pass_at_1")
class CodePassTask(GenerationTask):
    """Writes the function and runs its tests in a sandbox: one greedy sample per problem.

    Runs code that a model wrote, so it is in no tier of the suite: ask for it by name.

    Args:
        max_tokens: Most tokens of a solution.
        timeout_s: Wall-clock limit of a test run, in seconds.
    """

    name = "code_pass_at_1"

    def __init__(self, max_tokens: int = 256, timeout_s: float = 5.0) -> None:
        """Keep the limits."""
        self.max_tokens = max_tokens
        self.timeout_s = timeout_s

    def protocol(self, num_items: int, seed: int) -> str:
        """Return the sentence that reproduces a run."""
        return f"{super().protocol(num_items, seed)}/max_tokens={self.max_tokens}"

    def items(self, llm: EvalModel, num_items: int, seed: int) -> list[GenerationItem]:
        """Return the ``num_items`` shortest problems; the answer shown is the authors'."""
        return [
            GenerationItem(p.problem_id, p.prompt, p.solution, self.max_tokens, stop=_STOP)
            for p in _shortest(num_items)
        ]

    def is_correct(self, item: GenerationItem, text: str) -> bool:
        """Run the problem's tests on prompt + completion."""
        problem = next(p for p in problems() if p.problem_id == item.item_id)
        return run_program(test_program(problem, text), timeout_s=self.timeout_s).passed


def test_program(problem: Problem, completion: str) -> str:
    """Return a program that ends normally only if the completion passes the problem's tests."""
    return f"{problem.prompt}{completion}\n{problem.test}\ncheck({problem.entry_point})\n"


def _choice_item(problem: Problem, seed: int, num_choices: int) -> ChoiceItem:
    rng = random.Random(f"code-{seed}-{problem.problem_id}")
    wrong = mutants(problem.solution, rng)[: num_choices - 1]
    wrong += rng.sample(_similar_solutions(problem), num_choices - 1 - len(wrong))
    return ChoiceItem(problem.problem_id, problem.prompt, (problem.solution, *wrong))


def _similar_solutions(problem: Problem) -> list[str]:
    """Return bodies of other problems that are closest in length."""
    others = [p.solution for p in problems() if p.solution != problem.solution]
    size = len(problem.solution)
    return sorted(dict.fromkeys(others), key=lambda other: abs(len(other) - size))[:_NUM_SIMILAR]


def _shortest(num_items: int) -> tuple[Problem, ...]:
    if num_items > len(problems()):
        raise ConfigError(
            f"num_items={num_items} is above the {len(problems())} problems of HumanEval.",
            field="num_items",
            value=num_items,
        )
    return problems()[:num_items]
