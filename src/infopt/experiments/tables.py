"""Collects the records of a stage into a table."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from infopt.results import RunRecord, find_records, read_records, record_path, records_table

if TYPE_CHECKING:
    import pandas as pd

logger = logging.getLogger(__name__)


def collect(
    manifests: Sequence[Mapping[str, Any]],
    results_dir: str | Path,
    change: Callable[[RunRecord], RunRecord] | None = None,
) -> pd.DataFrame:
    """Return the results that the manifests of a stage list, and nothing else.

    Args:
        manifests: Of all slices of one stage.
        results_dir: Folder of all results.
        change: What to make of each record first.
    """
    paths = [
        record_path(manifest["stage"], slug, results_dir)
        for manifest in manifests
        for slug in manifest["records"]
    ]
    records = read_records(paths)
    return records_table(records if change is None else [change(record) for record in records])


def retire_others(manifests: Sequence[Mapping[str, Any]], results_dir: str | Path) -> list[Path]:
    """Move records out of the way that no manifest of their stage lists any more.

    A candidate that was renamed or removed leaves its record behind; whoever reads the whole folder
    would take it for a current result. It is moved and not deleted: it may be hours of work.

    Returns:
        Where the retired records are now.
    """
    listed = {
        record_path(m["stage"], slug, results_dir) for m in manifests for slug in m["records"]
    }
    moved = []
    for stage in sorted({m["stage"] for m in manifests}):
        for path in find_records(Path(results_dir, "runs", stage)):
            if path not in listed:
                target = Path(results_dir, "retired", stage, path.name)
                target.parent.mkdir(parents=True, exist_ok=True)
                path.replace(target)
                logger.info("no longer part of the configuration: %s -> %s", path, target)
                moved.append(target)
    return moved
