"""What a weight format gains over the reference, by batch size: measured and predicted."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from infopt.plotting.axes import (
    label_axis,
    legend_beside,
    log_ratio_axis,
    new_axes,
    reference_line,
    set_title,
)
from infopt.plotting.data import floats, names, usable_rows
from infopt.plotting.style import GREY, colors_for, markers_for, styled
from infopt.results.metrics import Metric
from infopt.results.table import require_columns

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes

_COLUMNS = ("num_tokens", "predicted")


@styled
def batch_gain(
    gains: pd.DataFrame,
    *,
    label: str = "scheme",
    reference: str = "reference",
    title: str | None = None,
    across: str = "Sequences in the decode step",
    measure: str = "Speed of a step, ratio to the reference",
    predicted_label: str = "predicted",
    ax: Axes | None = None,
) -> Axes:
    """Draw how many times faster a step is than the reference's, by sequences in the step.

    Points with intervals are measured, dashed lines follow from bytes and FLOPs alone; hollow
    points are undecided: their interval contains 1.

    Args:
        gains: One row per scheme and batch size: ``num_tokens``, ``measured``, ``low``, ``high``
            (NaN where only predicted) and ``predicted``, all ratios to the reference.
        label: Column with the names of schemes.
        reference: Name of the line at 1, in the legend: lines end where its own name would stand.
        title: The finding; default compares the smallest and the largest measured batch.
        across: Name of the horizontal axis.
        measure: Name of the vertical axis.
        predicted_label: Name of the dashed lines.
        ax: Where to draw.
    """
    table, _ = usable_rows(gains, _COLUMNS, "batch_gain")
    require_columns(table, ["measured", "low", "high", label], "batch_gain")
    labels = names(table, label)
    schemes = list(dict.fromkeys(labels))
    colors, markers = colors_for(schemes), markers_for(schemes)
    ax = new_axes(ax, (8.4, 4.6))
    is_any_open = False
    for name in schemes:
        own = table.loc[[other == name for other in labels]].sort_values(by=["num_tokens"])
        x = floats(own, "num_tokens")
        ax.plot(x, floats(own, "predicted"), color=colors[name], linestyle="--", linewidth=1.3)
        is_any_open |= _draw_measured(ax, own, name, colors[name], markers[name])
    ax.plot([], [], color="#303030", linestyle="--", linewidth=1.3, label=predicted_label)
    reference_line(ax, 1.0, axis="y")
    ax.plot([], [], color=GREY, linestyle="--", linewidth=1.2, label=reference)
    _scale(ax, table)
    metric = Metric("gain", measure, better="higher")
    ax.set_xlabel(f"{across}\nhollow: undecided" if is_any_open else across)
    label_axis(ax, "y", metric)
    legend_beside(ax)
    set_title(ax, title or _finding(table, labels))
    return ax


def _draw_measured(ax: Axes, own: pd.DataFrame, name: str, color: str, marker: str) -> bool:
    """Draw the measured points of a scheme and return whether any of them is undecided."""
    own = own.loc[np.isfinite(floats(own, "measured"))]
    x, y, low, high = (floats(own, c) for c in ("num_tokens", "measured", "low", "high"))
    ax.plot(x, y, color=color, linewidth=1.4)
    ax.plot([], [], color=color, marker=marker, linewidth=1.4, label=name)
    is_open = (low <= 1) & (high >= 1)
    for i in range(len(x)):
        ax.errorbar(
            x[i],
            y[i],
            yerr=np.clip([[y[i] - low[i]], [high[i] - y[i]]], 0, None),
            fmt=marker,
            color=color,
            markerfacecolor="white" if is_open[i] else color,
            elinewidth=1.1,
            capsize=2,
            zorder=3,
        )
    return bool(is_open.any())


def _scale(ax: Axes, table: pd.DataFrame) -> None:
    sizes = sorted(set(floats(table, "num_tokens")))
    ax.set_xscale("log", base=2)
    ax.set_xticks(sizes, [f"{size:g}" for size in sizes])
    columns = ("measured", "low", "high", "predicted")
    ends = np.concatenate([floats(table, c) for c in columns] + [np.ones(1)])
    ax.minorticks_off()
    log_ratio_axis(ax, "y", float(np.nanmin(ends)) / 1.15, float(np.nanmax(ends)) * 1.15)


def _finding(table: pd.DataFrame, labels: list[str]) -> str:
    measured = table.assign(_name=labels).loc[np.isfinite(floats(table, "measured"))]
    if measured.empty:
        return "Predicted from bytes and FLOPs; nothing was measured"
    sizes = floats(measured, "num_tokens")
    first = measured.loc[sizes == sizes.min()]
    best = first.iloc[int(np.argmax(floats(first, "measured")))]
    own = measured.loc[measured["_name"] == best["_name"]].sort_values(by=["num_tokens"])
    last = own.iloc[-1]
    return (
        f"{best['_name']}: {best['measured']:.2g}x at {best['num_tokens']:.0f}, "
        f"{last['measured']:.2g}x at {last['num_tokens']:.0f} sequences"
    )
