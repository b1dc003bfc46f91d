"""How long each part of a run took, against its budget."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from infopt.notebooks import read_notebook
from infopt.results import read_json, write_table

if TYPE_CHECKING:
    import pandas as pd

logger = logging.getLogger(__name__)


def write_summary(
    *,
    model_path: str | Path,
    manifest_paths: Iterable[str | Path],
    notebook_paths: Iterable[str | Path],
    budget_s: Mapping[str, float],
    path: str | Path,
) -> pd.DataFrame:
    """Write the durations of all jobs as CSV; a stage over its budget is warned about.

    Args:
        model_path: What the models stage wrote.
        manifest_paths: Manifests of all slices.
        notebook_paths: Executed notebooks.
        budget_s: Expected seconds by stage.
        path: Where the table goes.
    """
    import pandas as pd

    rows = [("models", "fetch", float(read_json(model_path)["duration_s"]))]
    for manifest in map(read_json, manifest_paths):
        rows.append((manifest["stage"], manifest["slice"], float(manifest["duration_s"])))
    rows += [("notebooks", Path(p).stem, _notebook_seconds(p)) for p in notebook_paths]
    table = pd.DataFrame(rows, columns=pd.Index(["stage", "job", "duration_s"]))
    total = table.groupby("stage")["duration_s"].transform("sum")
    table["stage_duration_s"] = total
    table["stage_budget_s"] = [float(budget_s[stage]) for stage in table["stage"]]
    table["is_over_budget"] = table["stage_duration_s"] > table["stage_budget_s"]
    for stage, group in table[table["is_over_budget"]].groupby("stage"):
        first: Any = group.iloc[0]
        logger.warning(
            "%s took %.0f s, its budget is %.0f s: use a smaller workload or fewer candidates",
            stage,
            first["stage_duration_s"],
            first["stage_budget_s"],
        )
    write_table(table, path)
    return table


def _notebook_seconds(path: str | Path) -> float:
    return float(read_notebook(path).metadata["papermill"]["duration"])
