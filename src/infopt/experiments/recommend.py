"""The last steps: choose among the finalists, and write down what validation found."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from infopt.bench.slo import SLO
from infopt.experiments.costs import price_records
from infopt.experiments.spec import UNOPTIMIZED
from infopt.experiments.tables import collect, retire_others
from infopt.plotting.data import is_missing
from infopt.results import read_json, write_table
from infopt.select import (
    Recommendation,
    check_slo,
    choose,
    get_objective,
    inherit_quality,
    read_recommendation,
    write_recommendation,
)

if TYPE_CHECKING:
    import pandas as pd

logger = logging.getLogger(__name__)


def choose_finalist(
    manifest_paths: Iterable[str | Path],
    *,
    results_dir: str | Path,
    slo: str | Mapping[str, Any],
    floor: str | Mapping[str, Any],
    objective: str,
    path: str | Path,
    prices: Mapping[str, Any] | None = None,
) -> Recommendation:
    """Choose among the finalists and write the choice, still without validation.

    Args:
        manifest_paths: Of the finalists and of the slices that measured quality.
        results_dir: Folder of all results.
        slo: Service-level objective.
        floor: Quality floor.
        objective: What to be best at.
        path: Where the choice goes.
        prices: The configuration's ``prices``; None leaves the records' cost as it is.
    """
    manifests = [read_json(p) for p in manifest_paths]
    price_records(manifests, results_dir, prices)
    table = finalists_table(manifests, results_dir)
    reference = f"select/finalists.{UNOPTIMIZED}"
    found = choose(table, slo, floor, objective=objective, reference=reference)
    logger.info("%s: %s", found.status, found.reason)
    write_recommendation(found, path)
    return found


def finalists_table(
    manifests: Iterable[Mapping[str, Any]], results_dir: str | Path
) -> pd.DataFrame:
    """Return the finalists, each with a quality of its own or of the run that computes the same.

    Finalists that differ in scheduling alone compute the same tokens in float32, and the same up to
    rounding elsewhere; measuring the quality of each would repeat the same number.
    """
    table = inherit_quality(collect([*manifests], results_dir), require_batch_invariance=False)
    return table.query("stage == 'select'").reset_index(drop=True)


def recommend(
    *,
    choice_path: str | Path,
    manifest_paths: Iterable[str | Path],
    results_dir: str | Path,
    slo: str | Mapping[str, Any],
    recommendation_path: str | Path,
    table_path: str | Path,
    prices: Mapping[str, Any] | None = None,
) -> Recommendation:
    """Write the recommendation and the table of the stage.

    Args:
        choice_path: What `choose_finalist` wrote.
        manifest_paths: Of the finalists and their validation.
        results_dir: Folder of all results.
        slo: Service-level objective.
        recommendation_path: Where the recommendation goes.
        table_path: Where the table goes.
        prices: The configuration's ``prices``; None leaves the records' cost as it is.
    """
    manifests = [read_json(p) for p in manifest_paths]
    retire_others(manifests, results_dir)
    price_records(manifests, results_dir, prices)
    table = collect(manifests, results_dir)
    write_table(table, table_path)
    choice = read_recommendation(choice_path)
    notes = (*validation_notes(table, choice, SLO.from_spec(slo)), *choice.notes)
    found = dataclasses.replace(choice, notes=notes)
    for note in notes:
        logger.info(note)
    write_recommendation(found, recommendation_path)
    return found


def validation_notes(table: pd.DataFrame, choice: Recommendation, slo: SLO) -> list[str]:
    """Return what the runs on fresh seeds say about the choice, in sentences."""
    if choice.run is None:
        return ["Nothing was validated: no finalist keeps every limit."]
    run = choice.run.replace("select/finalists.", "select/validation.")
    row = table[table["run"] == run].iloc[0].to_dict()
    seeds = ", ".join(str(s) for s in row["seeds"])
    misses = [v.message for v in check_slo(row, slo)]
    kept = "every latency limit was kept" if not misses else f"NOT KEPT: {'; '.join(misses)}"
    return [f"On fresh seeds ({seeds}) {kept}.", *_ratio_note(row, choice.objective)]


def _ratio_note(row: Mapping[Any, Any], objective: str) -> list[str]:
    wanted = get_objective(objective)
    prefix = f"comparison.{wanted.paired}"
    median = row.get(f"{prefix}.median")
    if is_missing(median):
        return []
    low, high = row[f"{prefix}.low"], row[f"{prefix}.high"]
    return [
        f"On fresh seeds its {wanted.metric.label.lower()} was {median:.2f}x [{low:.2f}, "
        f"{high:.2f}] that of the unoptimized configuration ({row[f'{prefix}.verdict']})."
    ]
