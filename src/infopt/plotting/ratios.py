"""Paired ratios against a reference: what is really better, and what is noise."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from infopt.plotting.axes import (
    label_axis,
    log_ratio_axis,
    new_axes,
    reference_line,
    set_title,
)
from infopt.plotting.bars import name_rows, row_size
from infopt.plotting.data import floats, names, usable_rows
from infopt.plotting.style import row_colors, styled
from infopt.results.html import format_ratio
from infopt.results.metrics import Metric, metric_of
from infopt.results.table import require_columns

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes


@styled
def ratio_forest(
    df: pd.DataFrame,
    metric: str = "output_tokens_per_s",
    *,
    label: str = "slug",
    color: str | None = None,
    title: str | None = None,
    ax: Axes | None = None,
) -> Axes:
    """Draw paired ratios with 95 % intervals around the line at 1; undecided ones are hollow.

    Args:
        df: From ``load_results``; rows without this comparison are left out.
        metric: Name of the comparison.
        label: Column with the names of rows.
        color: Column whose values have colours; default: techniques have theirs.
        title: The finding; default counts better, worse and undecided runs.
        ax: Where to draw.
    """
    base = f"comparison.{metric}"
    require_columns(df, [f"{base}.verdict", f"{base}.reference"], "ratio_forest")
    table, _ = usable_rows(df, [f"{base}.{n}" for n in ("median", "low", "high")], "ratio_forest")
    median, low, high = (floats(table, f"{base}.{n}") for n in ("median", "low", "high"))
    verdicts, labels = names(table, f"{base}.verdict"), names(table, label)
    colors = row_colors(labels, names(table, color) if color else None)
    ax = new_axes(ax, row_size(len(labels)))
    for row, shade in enumerate(colors):
        ax.errorbar(
            median[row],
            row,
            xerr=[[max(median[row] - low[row], 0)], [max(high[row] - median[row], 0)]],
            fmt="o",
            color=shade,
            markerfacecolor="white" if verdicts[row] == "undecided" else shade,
            capsize=3,
            elinewidth=1.6,
        )
    references = sorted(set(names(table, f"{base}.reference")))
    reference_line(ax, 1.0, "reference" if len(references) > 1 else references[0])
    _scale(ax, low, high)
    name_rows(ax, labels)
    known = metric_of(metric)
    shown = Metric(metric, f"{known.label}, ratio to the reference", better=known.better)
    label_axis(ax, "x", shown, notes=["hollow: undecided" if "undecided" in verdicts else None])
    _write_ratios(ax, table, base)
    set_title(ax, title or _count(verdicts, known.label, references))
    return ax


def _scale(ax: Axes, low: np.ndarray, high: np.ndarray) -> None:
    """Use a logarithmic axis where ratios differ much: half and double are then equally far."""
    ends = np.concatenate([low, high, [1.0]])
    margin = 1.08
    left, right = float(ends.min()) / margin, float(ends.max()) * margin
    if left > 0 and right / left > 4:
        log_ratio_axis(ax, "x", left, right)
    else:
        ax.xaxis.set_major_formatter(lambda value, _: f"{value:.3g}x")
        ax.set_xlim(left, right)


def _write_ratios(ax: Axes, table: pd.DataFrame, base: str) -> None:
    """Write the numbers to the right of the axes, as in a forest plot."""
    pairs = f"{base}.num_pairs"
    counts = floats(table, pairs) if pairs in table.columns else None
    ends = (floats(table, f"{base}.{end}") for end in ("median", "low", "high"))
    for row, ratio in enumerate(zip(*ends, strict=True)):
        text = format_ratio(*(float(value) for value in ratio))
        text += f"  {counts[row]:.0f} pairs" if counts is not None else ""
        ax.annotate(
            text,
            (1.0, row),
            xycoords=ax.get_yaxis_transform(),
            xytext=(8, 0),
            textcoords="offset points",
            va="center",
            fontsize=8.5,
        )


def _count(verdicts: list[str], label: str, references: list[str]) -> str:
    counts = [(v, verdicts.count(v)) for v in ("better", "worse", "undecided")]
    text = ", ".join(f"{count} {verdict}" for verdict, count in counts if count)
    against = f" than {references[0]}" if len(references) == 1 and "undecided" not in text else ""
    against = against or (f" (against {references[0]})" if len(references) == 1 else "")
    return f"{label}: {text}{against}"
