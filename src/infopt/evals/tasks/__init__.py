"""Offline tasks: each scores items as right or wrong and keeps every item's outcome.

A new task subclasses :class:`~infopt.evals.tasks.base.ChoiceTask` or
:class:`~infopt.evals.tasks.base.GenerationTask`, implements ``items`` and registers itself.
"""

from __future__ import annotations

from infopt.evals.tasks import arithmetic, code, dialogue, multilingual, passkey
from infopt.evals.tasks.base import TASKS, Task
from infopt.evals.tasks.outcome import PairedTask, TaskResult, compare_outcomes

__all__ = [
    "TASKS",
    "PairedTask",
    "Task",
    "TaskResult",
    "arithmetic",
    "code",
    "compare_outcomes",
    "dialogue",
    "multilingual",
    "passkey",
]
