"""How throughput and goodput follow batch size and load."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from infopt.plotting.axes import label_axis, legend_beside, new_axes, set_title
from infopt.plotting.data import Values, in_sentence, names, read_values, shown, usable_rows
from infopt.plotting.style import GREY, colors_for, markers_for, styled

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes


@styled
def throughput_vs_batch(
    df: pd.DataFrame,
    x: str = "config.max_num_seqs",
    y: str = "throughput.output_tokens_per_s",
    *,
    group: str | None = "config.scheduling",
    ideal: bool = True,
    title: str | None = None,
    ax: Axes | None = None,
) -> Axes:
    """Draw throughput over the number of sequences at once, with 95 % intervals.

    Args:
        df: From ``load_results``.
        x: Column of the batch size (or another size; the axis doubles from tick to tick).
        y: Column of the throughput.
        group: Column that makes the lines.
        ideal: Also draw what proportional growth from the smallest size would give.
        title: The finding; default tells the growth of the best line.
        ax: Where to draw.
    """
    table, note = usable_rows(df, [x, y], "throughput_vs_batch")
    across, up, groups = read_values(table, x), read_values(table, y), names(table, group)
    ax = new_axes(ax)
    _draw_lines(ax, across, up, groups)
    if ideal and len(set(across.values)) > 1:
        _draw_proportional(ax, across.values, up.values)
    ax.set_xscale("log", base=2)
    ticks = np.unique(across.values)
    ax.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
    ax.minorticks_off()
    ax.set_ylim(bottom=0)
    label_axis(ax, "x", across.metric, notes=[note])
    label_axis(ax, "y", up.metric)
    legend_beside(ax)
    set_title(ax, title or _growth(across, up, groups))
    return ax


@styled
def goodput_curve(
    df: pd.DataFrame,
    x: str = "throughput.offered_requests_per_s",
    y: str = "slo.goodput_requests_per_s",
    *,
    group: str | None = "slug",
    share: float = 0.9,
    title: str | None = None,
    ax: Axes | None = None,
) -> Axes:
    """Draw requests per second within the objective over requests per second offered.

    On the diagonal every request is within it; the second line is where the stated share is.

    Args:
        df: From ``load_results``.
        x: Column of the offered load.
        y: Column of the goodput.
        group: Column that makes the lines.
        share: Share of requests that has to be within the objective (0.9).
        title: The finding; default gives the highest load with that share.
        ax: Where to draw.
    """
    table, note = usable_rows(df, [x, y], "goodput_curve")
    across, up, groups = read_values(table, x), read_values(table, y), names(table, group)
    ax = new_axes(ax)
    _draw_lines(ax, across, up, groups)
    end = float(across.values.max()) * 1.05
    ax.plot([0, end], [0, end], color=GREY, linewidth=1.2, linestyle="--", label="every request")
    ax.plot(
        [0, end],
        [0, share * end],
        color=GREY,
        linewidth=1.2,
        linestyle=":",
        label=f"{share:.0%} of requests",
    )
    ax.set_xlim(0, end)
    ax.set_ylim(bottom=0)
    label_axis(ax, "x", across.metric, notes=[note])
    label_axis(ax, "y", up.metric)
    legend_beside(ax, "Within the objective")
    set_title(ax, title or _capacity(across, up, groups, share))
    return ax


def _draw_lines(ax: Axes, x: Values, y: Values, groups: list[str]) -> None:
    colors, markers = colors_for(groups), markers_for(groups)
    for name in dict.fromkeys(groups):
        rows = np.flatnonzero([g == name for g in groups])
        rows = rows[np.argsort(x.values[rows], kind="stable")]
        ax.errorbar(
            x.values[rows],
            y.values[rows],
            yerr=y.errors[:, rows] if y.has_intervals else None,
            color=colors[name],
            marker=markers[name],
            capsize=3,
            elinewidth=1.2,
            label=name or None,
            zorder=3,
        )


def _draw_proportional(ax: Axes, x: np.ndarray, y: np.ndarray) -> None:
    """Draw growth in proportion, cut at the height of the data so that these stay readable."""
    start = int(np.lexsort((-y, x))[0])
    slope, top = y[start] / x[start], y.max() * 1.08
    line = np.geomspace(x[start], min(x.max(), top / slope), 60)
    ax.plot(line, slope * line, color=GREY, linewidth=1.2, linestyle=":", label="proportional")


def _growth(x: Values, y: Values, groups: list[str]) -> str:
    best = int(np.argmax(y.values))
    own = np.flatnonzero([g == groups[best] for g in groups])
    first = own[np.argmin(x.values[own])]
    peak = f"{shown(float(y.values[best]), y.metric)} at {x.values[best]:g}"
    label = in_sentence(y.metric.label) if groups[best] else y.metric.label
    name = f"{groups[best]}: " if groups[best] else ""
    if first == best:
        return f"{name}{label} is highest with {peak}"
    factor = y.values[best] / y.values[first]
    growth = f"grows {factor:.2g}x from {x.values[first]:g} to its peak"
    return f"{name}{label} {growth}, {peak}"


def _capacity(x: Values, y: Values, groups: list[str], share: float) -> str:
    keeps = y.values >= share * x.values
    if not keeps.any():
        return f"No run keeps the objective for {share:.0%} of requests"
    best = int(np.argmax(np.where(keeps, x.values, -np.inf)))
    name = f"{groups[best]} keeps" if groups[best] else "The engine keeps"
    load = shown(float(x.values[best]), x.metric)
    return f"{name} the objective for {share:.0%} of requests up to {load}"
