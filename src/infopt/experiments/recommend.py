"""The last steps: choose among the finalists, and write down what validation found."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from infopt.bench.slo import SLO
from infopt.errors import ResultError
from infopt.experiments.costs import price_records
from infopt.experiments.select_spec import BASELINES, COMPOSED, STATIC, UNOPTIMIZED, WITHOUT
from infopt.experiments.tables import collect, retire_others
from infopt.results import RunRecord, read_json, write_table
from infopt.results.html import format_ratio
from infopt.select import (
    BaselineGain,
    Recommendation,
    ablation,
    add_derived_columns,
    check_slo,
    choose,
    front_of,
    inherit_quality,
    interactions,
    read_recommendation,
    write_recommendation,
)
from infopt.select.rows import Row, number, rows_of

if TYPE_CHECKING:
    import pandas as pd

logger = logging.getLogger(__name__)

QUALITY_STAGES = ("baseline", "quantization", "kv_cache")
"""Stages whose records say what the finalists lose."""


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
    found = choose_among(table, slo, floor, objective)
    logger.info("%s: %s", found.status, found.reason)
    write_recommendation(found, path)
    return found


def choose_among(
    table: pd.DataFrame,
    slo: str | Mapping[str, Any] | None,
    floor: str | Mapping[str, Any] | None,
    objective: str,
) -> Recommendation:
    """Choose among the finalists; the one with every option at its reference judges quality."""
    reference = f"select/finalists.{UNOPTIMIZED}"
    return choose(table, slo, floor, objective=objective, reference=reference)


def finalists_manifests(results_dir: str | Path) -> list[dict[str, Any]]:
    """Return the manifests of the finalists and of the slices that measured quality.

    Raises:
        ResultError: The folder has no finalists.
    """
    slices = Path(results_dir, "slices")
    finalists = slices / "select" / "finalists.json"
    if not finalists.is_file():
        raise ResultError(
            f"{results_dir} holds no finalists to choose from again: there is no {finalists}.",
            field="path",
            value=str(results_dir),
            remedy="Give the recommendation in its results folder, whose runs are read.",
        )
    judged = [p for stage in QUALITY_STAGES for p in sorted(slices.glob(f"{stage}/*.json"))]
    return [read_json(path) for path in (finalists, *judged)]


def finalists_table(
    manifests: Iterable[Mapping[str, Any]],
    results_dir: str | Path,
    change: Callable[[RunRecord], RunRecord] | None = None,
) -> pd.DataFrame:
    """Return the finalists, each with a quality of its own or of the run that computes the same.

    Finalists that differ in scheduling alone compute the same tokens in float32, and the same up to
    rounding elsewhere; measuring the quality of each would repeat the same number.

    Args:
        manifests: Of the finalists and of the slices that measured quality.
        results_dir: Folder of all results.
        change: What to make of each record first.
    """
    found = collect([*manifests], results_dir, change)
    table = inherit_quality(found, require_batch_invariance=False)
    return table.query("stage == 'select'").reset_index(drop=True)


def recommend(
    *,
    choice_path: str | Path,
    manifest_paths: Iterable[str | Path],
    quality_paths: Iterable[str | Path],
    results_dir: str | Path,
    slo: str | Mapping[str, Any],
    recommendation_path: str | Path,
    table_path: str | Path,
    prices: Mapping[str, Any] | None = None,
) -> Recommendation:
    """Write the recommendation and the table of the stage.

    Args:
        choice_path: What `choose_finalist` wrote.
        manifest_paths: Of the capacities, the finalists and their validation.
        quality_paths: Of the slices that measured quality.
        results_dir: Folder of all results.
        slo: Service-level objective.
        recommendation_path: Where the recommendation goes.
        table_path: Where the table goes.
        prices: The configuration's ``prices``; None leaves the records' cost as it is.
    """
    manifests = [read_json(p) for p in manifest_paths]
    retire_others(manifests, results_dir)
    price_records(manifests, results_dir, prices)
    write_table(collect(manifests, results_dir), table_path)
    table = finalists_table([*manifests, *map(read_json, quality_paths)], results_dir)
    choice = read_recommendation(choice_path)
    notes = (*validation_notes(table, choice, SLO.from_spec(slo)), *choice.notes)
    found = dataclasses.replace(choice, notes=notes, **tradeoffs(table, choice))
    for note in notes:
        logger.info(note)
    write_recommendation(found, recommendation_path)
    return found


def tradeoffs(table: pd.DataFrame, choice: Recommendation) -> dict[str, Any]:
    """Return the parts of a recommendation that compare more than two runs.

    Args:
        table: Capacities, finalists and validation, with quality.
        choice: What was chosen among the finalists.
    """
    return {"baselines": baseline_gains(table, choice), **comparisons(table)}


def comparisons(table: pd.DataFrame) -> dict[str, Any]:
    """Return what each technique is worth, how they act together, and the front of the finalists.

    Args:
        table: The finalists, with quality; other runs take no part.
    """
    marked = add_derived_columns(table, f"select/finalists.{UNOPTIMIZED}")
    rows = candidate_rows(marked, "finalists")
    without = {n.removeprefix(WITHOUT): r for n, r in rows.items() if n.startswith(WITHOUT)}
    effects = ablation(rows[COMPOSED], without)
    return {
        "ablation": effects,
        "interactions": interactions(rows[COMPOSED], rows.get(UNOPTIMIZED), effects),
        "front": front_of(marked.query("`extra.slice` == 'finalists'").reset_index(drop=True)),
    }


def candidate_rows(table: pd.DataFrame, name: str) -> dict[str, dict[str, Any]]:
    """Return the rows of a slice by candidate."""
    found = [row for row in rows_of(table) if row["extra.slice"] == name]
    return {str(row["extra.candidate"]): row for row in found}


def validation_notes(table: pd.DataFrame, choice: Recommendation, slo: SLO) -> list[str]:
    """Return what the runs on fresh seeds say about the choice, in sentences."""
    if choice.run is None:
        return ["Nothing was validated: no finalist keeps every limit."]
    run = choice.run.replace("select/finalists.", "select/validation.")
    row = table[table["run"] == run].iloc[0].to_dict()
    seeds = ", ".join(str(s) for s in row["seeds"])
    misses = [v.message for v in check_slo(row, slo)]
    kept = "every latency limit was kept" if not misses else f"NOT KEPT: {'; '.join(misses)}"
    gains = [gain.message for gain in baseline_gains(table, choice)]
    return [f"On fresh seeds ({seeds}) {kept}.", *gains]


def baseline_gains(table: pd.DataFrame, choice: Recommendation) -> tuple[BaselineGain, ...]:
    """Return the goodput of the choice against each baseline, on fresh seeds."""
    tried, rates = candidate_rows(table, "validation"), candidate_rows(table, "capacity")
    if choice.run is None:
        return ()
    chosen = next(row for name, row in tried.items() if name not in BASELINES)
    return tuple(_gain(name, chosen, tried[name], rates[name]) for name in BASELINES)


def _gain(name: str, chosen: Row, row: Row, found: Row) -> BaselineGain:
    goodputs = [float(r["slo.goodput_requests_per_s"]) for r in (row, chosen)]
    prefix = "comparison.goodput_requests_per_s"
    pairs = [number(row, f"{prefix}.{key}") for key in ("median", "low", "high")]
    # The baseline was paired with the choice; its gain is the other way round.
    inverse = [1 / value for value in pairs if value]
    ratio, high, low = inverse if len(inverse) == len(pairs) else (None, None, None)
    factor = float(found["extra.slo_factor"])
    values = {
        "rate_per_s": float(row["throughput.offered_requests_per_s"]),
        "goodput_per_s": goodputs[0],
        "chosen_goodput_per_s": goodputs[1],
        "ratio": ratio,
        "low": low,
        "high": high,
        "num_seeds": len(row["seeds"]),
        "slo_factor": factor,
    }
    message = _gain_message(name, found, values)
    return BaselineGain(name=name, run=str(row["run"]), message=message, **values)


def _gain_message(name: str, found: Mapping[str, Any], values: Mapping[str, Any]) -> str:
    what = "continuous batching in bfloat16"
    if name == STATIC:
        size, timeout = found["extra.batch_size"], found["extra.timeout_s"]
        wait = f", filled for {timeout:g} s at most" if timeout else ""
        what = f"the best static setting (batches of {size:.0f}{wait}, bfloat16)"
    ratio = "could not be compared in every pair with"
    if values["ratio"] is not None:
        ratio = f"was {format_ratio(*(values[k] for k in ('ratio', 'low', 'high')))} that of"
    relaxed = ""
    if values["slo_factor"] != 1:
        relaxed = (
            f" Under the objective itself that setting serves nothing; both were judged with "
            f"limits {values['slo_factor']:.3g} times as long."
        )
    return (
        f"On fresh seeds its goodput ({values['chosen_goodput_per_s']:.3g} requests/s) {ratio} "
        f"{what} ({values['goodput_per_s']:.3g} at {values['rate_per_s']:.3g} offered).{relaxed}"
    )
