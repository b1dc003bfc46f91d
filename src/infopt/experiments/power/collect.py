"""The table and the choice of the stage `power`."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from infopt.experiments.choose import choose_slice, winners_of
from infopt.experiments.costs import price_records
from infopt.experiments.slice_spec import SliceSpec
from infopt.experiments.tables import collect, retire_others
from infopt.experiments.yaml_files import write_yaml
from infopt.results import read_json, write_table
from infopt.select.rows import number, rows_of

if TYPE_CHECKING:
    import pandas as pd

COLUMNS = ("run", "stage", "slug", "status", "extra.slice", "extra.candidate", "extra.position")
"""Of a table without any run: a machine that has none of the questions."""

Entry = dict[str, Any]


def collect_power(
    manifest_paths: Iterable[str | Path],
    specs: Sequence[str],
    *,
    results_dir: str | Path,
    prices: Mapping[str, Any],
    table_path: str | Path,
    chosen_path: str | Path,
    winners_path: str | Path,
) -> None:
    """Write the table of the stage and what it chose.

    Args:
        manifest_paths: Manifests of its slices.
        specs: Their specifications as JSON.
        results_dir: Folder of all results.
        prices: The configuration's ``prices``; they are kept beside the choice.
        table_path: Where the table goes.
        chosen_path: Where the choice goes, with its reasons.
        winners_path: Where the winners go, which the next stages start from.
    """
    manifests = [read_json(path) for path in manifest_paths]
    retire_others(manifests, results_dir)
    price_records(manifests, results_dir, prices)
    table = power_table(manifests, results_dir)
    write_table(table, table_path)
    chosen = choose_power(table, manifests, [SliceSpec.from_json(text) for text in specs])
    write_yaml(chosen | {"prices": dict(prices)}, chosen_path)
    write_yaml(winners_of(chosen), winners_path)


def power_table(manifests: Sequence[Mapping[str, Any]], results_dir: str | Path) -> pd.DataFrame:
    """Return the records of all slices, with no row where every slice was skipped."""
    import pandas as pd

    if any(manifest["records"] for manifest in manifests):
        return collect(manifests, results_dir)
    return pd.DataFrame({name: [] for name in COLUMNS})


def choose_power(
    table: pd.DataFrame, manifests: Sequence[Mapping[str, Any]], specs: Sequence[SliceSpec]
) -> Entry:
    """Return what the stage chose, in the form of `infopt.experiments.choose.choose_stage`.

    Args:
        table: Results of the stage.
        manifests: Of its slices; they say which candidates this machine had.
        specs: The slices.
    """
    by_name = {spec.name: spec for spec in specs}
    slices = {m["slice"]: _entry(table, m, by_name[m["slice"]]) for m in manifests}
    deciding = [entry for entry in slices.values() if entry["decides"]]
    engine = {key: value for entry in deciding for key, value in entry["engine"].items()}
    return {"stage": "power", "engine": engine, "slices": slices}


def _entry(table: pd.DataFrame, manifest: Mapping[str, Any], spec: SliceSpec) -> Entry:
    if not manifest["candidates"]:
        reason = manifest["skipped"] or "; ".join(manifest["left_out"].values())
        return _explaining("none", "none", "skipped", reason)
    if spec.name == "cold_start":
        return _fastest_start(table, manifest)
    sized = dataclasses.replace(
        spec, candidates=manifest["candidates"], reference=manifest["reference"]
    )
    return choose_slice(table, sized, None)


def _fastest_start(table: pd.DataFrame, manifest: Mapping[str, Any]) -> Entry:
    """Return the format that starts fastest; the format is chosen by its own stage."""
    rows = [r for r in rows_of(table) if r["extra.slice"] == manifest["slice"]]
    starts = {str(r["extra.candidate"]): number(r, "extra.cold_start_s") or 0.0 for r in rows}
    fastest = min(starts, key=lambda slug: starts[slug])
    reason = f"It starts fastest, in {starts[fastest]:.2f} s; weight formats have their own stage."
    return _explaining(fastest, str(manifest["reference"]), "explained", reason)


def _explaining(chosen: str, reference: str, status: str, reason: str) -> Entry:
    return {
        "chosen": chosen,
        "decides": False,
        "reference": reference,
        "engine": {},
        "reference_engine": {},
        "status": status,
        "reason": reason,
    }
