"""infopt's own choice tasks as task files of the harness: a YAML file and generated items.

The names are ``infopt_<task>``. Items are those that `infopt.evals.tasks` makes for the same number
and seed, so the harness's accuracy is ours. ``acc`` compares log-probabilities, ``acc_bytes`` those
per byte; a task's own one is the metric of its file.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

import yaml

from infopt.evals.tasks import TASKS
from infopt.evals.tasks.base import ChoiceTask

PREFIX = "infopt_"


def local_tasks() -> list[str]:
    """Return the names of the tasks that have files: those that choose by likelihood."""
    kinds = {name: TASKS.get(name) for name in TASKS.names()}
    return [f"{PREFIX}{name}" for name, kind in kinds.items() if issubclass(kind, ChoiceTask)]


def write_task_files(
    folder: str | Path, names: Iterable[str], *, num_items: int, seed: int = 0
) -> list[Path]:
    """Write task files and return the YAML ones.

    Args:
        folder: Where; it is made.
        names: From `local_tasks`.
        num_items: Items of each.
        seed: Chooses them.
    """
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    return [_write(folder, name.removeprefix(PREFIX), num_items, seed) for name in names]


def _write(folder: Path, name: str, num_items: int, seed: int) -> Path:
    kind = TASKS.get(name)
    assert issubclass(kind, ChoiceTask), name
    data = folder / f"{name}.jsonl"
    rows = [
        # The right one last: in a tie the harness takes the first, and a tie is wrong.
        {
            "prompt": item.prompt,
            "choices": [*item.choices[1:], item.choices[0]],
            "gold": len(item.choices) - 1,
        }
        for item in kind().items(num_items, seed)
    ]
    data.write_text("".join(f"{json.dumps(row)}\n" for row in rows), "utf-8")
    metric = "acc" if kind.normalise == "none" else "acc_bytes"
    settings = {
        "task": f"{PREFIX}{name}",
        "dataset_path": "json",
        "dataset_kwargs": {"data_files": {"test": str(data.resolve())}},
        "test_split": "test",
        "output_type": "multiple_choice",
        "doc_to_text": "{{prompt}}",
        "doc_to_choice": "choices",
        "doc_to_target": "gold",
        "target_delimiter": "",
        "metric_list": [{"metric": metric, "aggregation": "mean", "higher_is_better": True}],
        "metadata": {"version": 1.0},
    }
    path = folder / f"{name}.yaml"
    path.write_text(yaml.safe_dump(settings, sort_keys=False), "utf-8")
    return path
