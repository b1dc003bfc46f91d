"""Runs tasks of the harness on a model."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from typing import Any

from infopt.errors import ConfigError, DependencyError, nearest
from infopt.evals.model import EvalModel

DEFAULT_ITEMS = 100
"""Items of infopt's own tasks, whose number is not in a data set."""


def run_harness(
    llm: EvalModel,
    tasks: Sequence[str],
    *,
    limit: int | None = None,
    num_fewshot: int | None = None,
    use_tqdm: bool = True,
) -> dict[str, Any]:
    """Return the harness's results by task.

    Args:
        llm: The model.
        tasks: Names of the harness's tasks, or ``infopt_<task>`` for infopt's own, which need no
            download.
        limit: Most items of each task.
        num_fewshot: Examples in the prompt, where it is not the task's own number.
        use_tqdm: Show progress.

    Raises:
        DependencyError: The harness is not installed.
        ConfigError: A task is unknown.
    """
    try:
        import lm_eval
        from lm_eval.tasks import TaskManager
    except ImportError as error:
        raise DependencyError(
            f"Tasks of the harness need lm-eval: {error}.",
            field="tasks",
            value=list(tasks),
            remedy="pip install 'infopt[eval]'; without --tasks the own suite runs.",
        ) from error
    from infopt.evals.harness.adapter import HarnessModel
    from infopt.evals.harness.task_files import local_tasks, write_task_files

    own = [name for name in tasks if name in local_tasks()]
    with tempfile.TemporaryDirectory(prefix="infopt-tasks-") as folder:
        write_task_files(folder, own, num_items=limit or DEFAULT_ITEMS)
        manager = TaskManager(include_path=folder)
        _check_names(tasks, [*local_tasks(), *manager.all_tasks])
        evaluate: Any = lm_eval.simple_evaluate  # its decorator hides the parameters
        found = evaluate(
            HarnessModel(llm, use_tqdm=use_tqdm),
            tasks=list(tasks),
            limit=limit,
            num_fewshot=num_fewshot,
            task_manager=manager,
            bootstrap_iters=1000,
            log_samples=False,
        )
    return dict(found["results"])


def _check_names(tasks: Sequence[str], known: Sequence[str]) -> None:
    for name in tasks:
        if name not in known:
            raise ConfigError(
                f"The harness has no task {name!r}.{nearest(name, known)}",
                field="tasks",
                value=name,
                remedy="`lm-eval ls tasks` lists its tasks; infopt's own begin with infopt_.",
            )
