"""Figures of the report: one per slice, and one of the finalists."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from infopt.errors import ResultError
from infopt.experiments.findings.tables import forest_axes
from infopt.plotting import bars_with_interval, pareto, save
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


def _save(axes: Axes, path: str | Path) -> None:
    path = Path(path)
    save(axes, path.with_suffix(""), formats=[path.suffix.removeprefix(".")])
