"""What a stage hands on: the winner of each slice, as engine options with the reason.

The rule is that of the final recommendation (`infopt.select.choose`): limits first, then the
criterion, and where the measurements cannot tell two candidates apart, the one nearer to the
defaults. Where no candidate keeps the limits, the reference stays.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from infopt.experiments.costs import price_records
from infopt.experiments.judging import limits_of
from infopt.experiments.slice_spec import SliceSpec, merged
from infopt.experiments.tables import collect, retire_others
from infopt.experiments.yaml_files import write_yaml
from infopt.results import read_json, write_table
from infopt.select import Recommendation, choose

if TYPE_CHECKING:
    import pandas as pd


def collect_stage(
    manifest_paths: Iterable[str | Path],
    specs: Sequence[str],
    *,
    results_dir: str | Path,
    floor: str | Mapping[str, Any] | None,
    table_path: str | Path,
    chosen_path: str | Path,
    winners_path: str | Path,
    prices: Mapping[str, Any] | None = None,
) -> None:
    """Write the table of a stage and what it chose.

    Args:
        manifest_paths: Manifests of its slices.
        specs: Their specifications as JSON.
        results_dir: Folder of all results.
        floor: Quality floor.
        table_path: Where the table goes.
        chosen_path: Where the choice goes, with its reasons.
        winners_path: Where the winners go, which the next stages start from.
        prices: The configuration's ``prices``; None leaves the records' cost as it is.
    """
    manifests = [read_json(path) for path in manifest_paths]
    retire_others(manifests, results_dir)
    price_records(manifests, results_dir, prices)
    table = collect(manifests, results_dir)
    write_table(table, table_path)
    chosen = choose_stage(table, [SliceSpec.from_json(text) for text in specs], floor)
    write_yaml(chosen | {"quality_floor": copy.deepcopy(floor)}, chosen_path)
    write_yaml(winners_of(chosen), winners_path)


def choose_stage(
    table: pd.DataFrame, specs: Sequence[SliceSpec], floor: str | Mapping[str, Any] | None
) -> dict[str, Any]:
    """Return what a stage chose.

    Args:
        table: Results of the stage.
        specs: Its slices.
        floor: Quality floor where the slice measured quality.

    Returns:
        ``engine`` (options of all winners together) and ``slices`` with, for each, the winner, the
        reference, the options of both, the status and the reason.
    """
    slices = {spec.name: choose_slice(table, spec, floor) for spec in specs}
    winners = [e["engine"] for e in slices.values() if e["decides"]]
    engine = merged(*map(copy.deepcopy, winners))  # shared parts would be YAML anchors
    return {"stage": specs[0].stage, "engine": engine, "slices": slices}


def winners_of(chosen: Mapping[str, Any]) -> dict[str, Any]:
    """Return what later stages read of a choice: the same as long as the same candidates win.

    Reasons and numbers are no part of it, so that a choice that only rests on others changes
    nothing that follows.
    """
    kept = ("engine", "reference_engine", "decides")
    slices = {name: {key: entry[key] for key in kept} for name, entry in chosen["slices"].items()}
    return copy.deepcopy({"stage": chosen["stage"], "engine": chosen["engine"], "slices": slices})


def choose_slice(
    table: pd.DataFrame, spec: SliceSpec, floor: str | Mapping[str, Any] | None
) -> dict[str, Any]:
    """Return the winner of one slice."""
    slugs = {f"{spec.stage}/{spec.record_slug(slug)}": slug for slug in spec.candidates}
    names = list(slugs)  # noqa: F841 (the query reads it)
    rows = table.query("run in @names").reset_index(drop=True)
    reference = f"{spec.stage}/{spec.record_slug(spec.reference)}"
    found = choose(
        rows,
        limits_of(spec),
        floor if spec.measures_quality else None,
        objective=spec.criterion,
        reference=reference,
    )
    winner = slugs[found.run] if found.run else spec.reference
    reason = found.reason
    if spec.prefers is not None and spec.prefers in _ties(found, slugs):
        winner, reason = spec.prefers, _preferred(spec.prefers, winner)
    return {
        "chosen": winner,
        "decides": spec.decides,
        "reference": spec.reference,
        "engine": dict(spec.candidates[winner]),
        "reference_engine": dict(spec.candidates[spec.reference]),
        "status": found.status,
        "reason": reason,
    }


def _ties(found: Recommendation, slugs: Mapping[str, str]) -> set[str]:
    """Return the candidates that what was measured cannot tell from the one taken."""
    return {slugs[tie.run] for tie in found.ties}


def _preferred(slug: str, other: str) -> str:
    return (
        f"{slug} cannot be told from {other} by what was measured; it was taken because the "
        "configuration prefers it where it does not lose."
    )
