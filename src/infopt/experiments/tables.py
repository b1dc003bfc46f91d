"""Collects the records of a stage into a table."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from infopt.results import find_records, load_results, record_path

if TYPE_CHECKING:
    import pandas as pd

logger = logging.getLogger(__name__)


def collect(manifests: Sequence[Mapping[str, Any]], results_dir: str | Path) -> pd.DataFrame:
    """Return the results that the manifests of a stage list, and nothing else.

    Args:
        manifests: Of all slices of one stage.
        results_dir: Folder of all results.
    """
    paths = [
        record_path(manifest["stage"], slug, results_dir)
        for manifest in manifests
        for slug in manifest["records"]
    ]
    return load_results(paths)


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
