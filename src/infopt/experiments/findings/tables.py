"""Tables and titles that the notebooks show beside the plots."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from infopt.plotting import ratio_forest, results_table
from infopt.plotting.data import in_sentence, is_missing
from infopt.results.html import format_ratio
from infopt.results.metrics import metric_of
from infopt.select.rows import Row, rows_of

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes
    from pandas.io.formats.style import Styler

CANDIDATE = "extra.candidate"


def shown_ratio(row: Mapping[str, Any], base: str) -> str:
    """Return ``1.83x [1.7, 1.9]`` from the columns ``<base>.median`` (or ``.ratio``) and ends."""
    name = "median" if f"{base}.median" in row else "ratio"
    if is_missing(row.get(f"{base}.{name}")):
        return "not measured"
    return format_ratio(*(row[f"{base}.{end}"] for end in (name, "low", "high")))


def ratio_sentence(row: Mapping[str, Any], metric: str) -> str:
    """Return a paired ratio in words: ``1.83x the output throughput of x [1.7, 1.9] (better)``."""
    base = f"comparison.{metric}"
    if is_missing(row.get(f"{base}.median")):
        return "not compared"
    label = in_sentence(metric_of(metric).label)
    value, _, ends = shown_ratio(row, base).partition(" ")
    verdict = row[f"{base}.verdict"]
    return f"**{value}** the {label} of {_reference(row, metric)} {ends} ({verdict})"


def forest_axes(rows: pd.DataFrame, metric: str) -> Axes:
    """Draw the candidates of a slice against their reference, with the finding as title."""
    named = rows.copy()
    column = f"comparison.{metric}.reference"
    named[column] = [_reference(row, metric) for row in rows_of(rows)]
    return ratio_forest(named, metric, label=CANDIDATE, title=forest_title(rows, metric))


def forest_title(rows: pd.DataFrame, metric: str) -> str:
    """Say which candidates differ from the reference beyond doubt, and by how much."""
    base, label = f"comparison.{metric}", in_sentence(metric_of(metric).label)
    compared = [row for row in rows_of(rows) if not is_missing(row.get(f"{base}.median"))]
    if not compared:
        return f"No {label} was compared"
    decided = [row for row in compared if row[f"{base}.verdict"] != "undecided"]
    reference = _reference(compared[0], metric)
    if not decided:
        return f"No {label} differs from that of {reference} beyond doubt"
    parts = [f"{row[CANDIDATE]} {shown_ratio(row, base).partition(' ')[0]}" for row in decided]
    return f"{label[0].upper()}{label[1:]} against {reference}: {', '.join(parts)}"


def compare_table(
    rows: pd.DataFrame, columns: Sequence[str], metric: str | None = None
) -> pd.DataFrame:
    """Return the numbers of a plot, and what the comparison with the reference says.

    Args:
        rows: Candidates of one slice.
        columns: Columns to show.
        metric: Comparison to add as the last column.
    """
    table = results_table(rows, columns, label=CANDIDATE)
    table.index.name = "candidate"
    if metric is not None:
        label = in_sentence(metric_of(metric).label)
        table[f"{label}, ratio"] = [_cell(row, metric) for row in rows_of(rows)]
    return table


def full_text(table: pd.DataFrame) -> Styler:
    """Return a table that shows long texts in full, wrapped and set to the left."""
    left = {"text-align": "left", "white-space": "pre-wrap", "vertical-align": "top"}
    style = table.style
    style.set_properties(None, **left)
    style.format(precision=1)
    return style


def _cell(row: Row, metric: str) -> str:
    base = f"comparison.{metric}"
    if is_missing(row.get(f"{base}.median")):
        return "reference"
    return f"{shown_ratio(row, base)} {row[f'{base}.verdict']}"


def _reference(row: Mapping[str, Any], metric: str) -> str:
    """Return the candidate's name of the reference: ``scheduling.static`` is ``static``."""
    return str(row.get(f"comparison.{metric}.reference")).rpartition(".")[2]
