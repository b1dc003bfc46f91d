"""Bars with their 95 % intervals, one row per run."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from matplotlib.patheffects import withStroke

from infopt.plotting.axes import label_axis, new_axes, reference_line, set_title
from infopt.plotting.data import (
    Values,
    best_index,
    in_sentence,
    names,
    read_values,
    shown,
    superlative,
    usable_rows,
)
from infopt.plotting.style import row_colors, styled
from infopt.results.html import format_value

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes

_MAX_NAME = 38


@styled
def bars_with_interval(
    df: pd.DataFrame,
    value: str,
    *,
    label: str = "slug",
    color: str | None = None,
    reference: str | None = None,
    title: str | None = None,
    ax: Axes | None = None,
) -> Axes:
    """Draw one bar per run with its 95 % interval, and a line at the reference.

    Args:
        df: From ``load_results``.
        value: Column with the numbers.
        label: Column with the names of bars.
        color: Column whose values have colours; default: techniques have theirs.
        reference: Name (in the label column) of the bar to draw the line at.
        title: The finding; default names the best run.
        ax: Where to draw.
    """
    table, note = usable_rows(df, [value], "bars_with_interval")
    values, labels = read_values(table, value), names(table, label)
    ax = new_axes(ax, row_size(len(labels)))
    ax.barh(
        np.arange(len(labels)),
        values.values,
        height=0.62,
        color=row_colors(labels, names(table, color) if color else None, reference),
        xerr=values.errors if values.has_intervals else None,
        error_kw={"elinewidth": 1.4, "capsize": 3, "ecolor": "#303030"},
    )
    _write_values(ax, values)
    if reference in labels:
        reference_line(ax, float(values.values[labels.index(reference)]), reference)
    name_rows(ax, labels)
    ax.margins(x=0.16)
    label_axis(ax, "x", values.metric, notes=[note])
    ax.grid(visible=False, axis="y")
    set_title(ax, title or best_finding(values, labels))
    return ax


def row_size(num_rows: int) -> tuple[float, float]:
    """Return the size in inches of a figure with one row per run."""
    return 7.4, 1.5 + 0.37 * max(num_rows, 2)


def name_rows(ax: Axes, labels: list[str]) -> None:
    """Name the rows from top to bottom; names that are too long are cut in the middle."""
    ax.set_yticks(np.arange(len(labels)), [cut_name(name) for name in labels])
    ax.set_ylim(len(labels) - 0.4, -0.6)
    ax.grid(visible=False, axis="y")


def best_finding(values: Values, labels: list[str]) -> str:
    """Return which run has the best value, as a sentence."""
    metric, best = values.metric, best_index(values)
    value = shown(float(values.values[best]), metric)
    return f"{labels[best]} has the {superlative(metric)} {in_sentence(metric.label)}: {value}"


def _write_values(ax: Axes, values: Values) -> None:
    """Write each number to the right of its bar and interval."""
    ends = np.where(np.isfinite(values.high), values.high, values.values)
    for row, (end, value) in enumerate(zip(ends, values.values, strict=True)):
        ax.annotate(
            format_value(float(value), 3),
            (max(end, value, 0), row),
            xytext=(5, 0),
            textcoords="offset points",
            va="center",
            fontsize=9,
            path_effects=[withStroke(linewidth=2.5, foreground="white")],
        )


def cut_name(name: str) -> str:
    """Return a name short enough for axes and legends, cut in the middle."""
    if len(name) <= _MAX_NAME:
        return name
    half = _MAX_NAME // 2 - 1
    return f"{name[:half]}…{name[-half:]}"
