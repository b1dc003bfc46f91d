"""Figures of the report: one per slice, and one of the finalists."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from infopt.errors import ResultError
from infopt.experiments.findings.tables import forest_axes
from infopt.experiments.yaml_files import read_yaml
from infopt.plotting import bars_with_interval, load_curve, pareto, save, styled, written
from infopt.plotting.data import floats
from infopt.results import read_table
from infopt.select import get_objective, read_recommendation

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes


def slice_rows(table: pd.DataFrame, name: str) -> pd.DataFrame:
    """Return the rows of one slice, in the order of the configuration's candidates.

    Raises:
        ResultError: The table has no such slice.
    """
    rows = table.loc[table["extra.slice"] == name]
    if rows.empty:
        names = ", ".join(sorted(set(table["extra.slice"])))
        raise ResultError(
            f"The table has no slice {name!r}.",
            field="slice",
            value=name,
            remedy=f"Slices: {names}.",
        )
    return rows.sort_values(by=["extra.position"]).reset_index(drop=True)


def draw_slice(table_path: str | Path, name: str, criterion: str, path: str | Path) -> None:
    """Draw the candidates of a slice against their reference, by what decides between them.

    Args:
        table_path: Table of the stage.
        name: Slice.
        criterion: Objective that decides.
        path: Picture to write; its ending is the format.
    """
    rows = slice_rows(read_table(table_path), name)
    _save(slice_axes(rows, criterion), path)


def slice_axes(rows: pd.DataFrame, criterion: str) -> Axes:
    """Return ratios with intervals, or the plain numbers where nothing was compared."""
    wanted = get_objective(criterion)
    if f"comparison.{wanted.paired}.median" in rows.columns and wanted.paired:
        return forest_axes(rows, wanted.paired)
    return bars_with_interval(rows, wanted.column, label="extra.candidate")


def draw_finalists(
    table_path: str | Path, recommendation_path: str | Path, path: str | Path
) -> None:
    """Draw the finalists by latency and throughput, the chosen one circled.

    Args:
        table_path: Table of the stage `select`.
        recommendation_path: The recommendation.
        path: Picture to write.
    """
    table = read_table(table_path)
    chosen = read_recommendation(recommendation_path).run
    _save(finalists_axes(table, chosen), path)


def finalists_axes(table: pd.DataFrame, chosen: str | None) -> Axes:
    """Return the finalists by time to first token and throughput."""
    rows = slice_rows(table, "finalists")
    return pareto(
        rows,
        "latency.ttft_s.p50",
        "throughput.output_tokens_per_s",
        color="extra.candidate",
        label="extra.candidate",
        chosen=chosen,
    )


def draw_serving(
    table_path: str | Path, chosen_path: str | Path, limits: Mapping[str, float], path: str | Path
) -> None:
    """Draw goodput and time to first token of a server over the offered load.

    Args:
        table_path: Table of the stage `serving`.
        chosen_path: Its saturation point.
        limits: Limits of the objective in seconds, by name.
        path: Picture to write.
    """
    saturation = read_yaml(chosen_path)["saturation"]
    _save(serving_axes(read_table(table_path), saturation, limits), path)


def draw_power(
    table_path: str | Path, chosen_path: str | Path, name: str, path: str | Path
) -> None:
    """Draw a question of the stage `power`, or why this machine does not have it.

    Args:
        table_path: Table of the stage.
        chosen_path: What it chose.
        name: Slice.
        path: Picture to write.
    """
    entry = read_yaml(chosen_path)["slices"][name]
    if entry["status"] == "skipped":
        _save(written(entry["reason"], title=f"{name}: not measured on this machine"), path)
        return
    rows = slice_rows(read_table(table_path), name)
    if name == "cold_start":
        axes = bars_with_interval(rows, "extra.cold_start_s", label="extra.candidate")
    else:
        axes = slice_axes(rows, "throughput")
    _save(axes, path)


@styled
def serving_axes(
    table: pd.DataFrame, saturation: Mapping[str, Any], limits: Mapping[str, float]
) -> Axes:
    """Return goodput above and the 90th percentile of TTFT below, over the offered load."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7.5, 7.0), layout="constrained")
    FigureCanvasAgg(figure)
    upper, lower = figure.subplots(2, 1, sharex=True)
    bracket = (saturation["last_good_per_s"], saturation["first_bad_per_s"])
    load_curve(table, bracket=bracket, ax=upper)
    column = ttft_column(table)
    load_curve(table, column, bracket=bracket, limit=limits.get("ttft_s"), ax=lower)
    return upper


def ttft_column(table: pd.DataFrame) -> str:
    """Return the 90th percentile of TTFT, or the median where no run has ten requests."""
    high = "latency.ttft_s.p90"
    return high if np.isfinite(floats(table, high)).any() else "latency.ttft_s.p50"


def _save(axes: Axes, path: str | Path) -> None:
    path = Path(path)
    save(axes, path.with_suffix(""), formats=[path.suffix.removeprefix(".")])
