"""Mixtures of experts: dense against sparse, loads of experts, distinct experts of a step."""

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
from infopt.plotting.data import floats, names
from infopt.plotting.style import (
    GREY,
    colors_for,
    markers_for,
    row_colors,
    styled,
)
from infopt.plotting.verdict_dots import NOTE, verdict_dots
from infopt.results.metrics import Metric
from infopt.results.table import require_columns

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes


@styled
def measure_ratios(
    table: pd.DataFrame, *, reference: str, title: str | None = None, ax: Axes | None = None
) -> Axes:
    """Draw ratios of several measures to one reference, each judged in its own direction.

    A triangle up is better, down is worse, a hollow circle is undecided.

    Args:
        table: ``measure``, ``ratio``, ``low``, ``high``, ``verdict``.
        reference: Name of the line at 1.
        title: The finding; default counts the verdicts.
        ax: Where to draw.
    """
    require_columns(table, ["measure", "ratio", "low", "high", "verdict"], "measure_ratios")
    ax = new_axes(ax, (7.6, 1.8 + 0.36 * len(table)))
    ratio, low, high = (floats(table, column) for column in ("ratio", "low", "high"))
    found = verdict_dots(ax, names(table, "measure"), names(table, "verdict"), ratio, low, high)
    log_ratio_axis(ax, "x", min(float(low.min()), 1.0) / 1.05, max(float(high.max()), 1.0) * 1.05)
    reference_line(ax, 1.0, reference)
    metric = Metric("ratio", f"Ratio to {reference}")
    label_axis(ax, "x", metric, notes=[NOTE])
    set_title(ax, title or f"Against {reference}: {found}")
    return ax


@styled
def expert_loads(
    loads: pd.DataFrame, num_experts: int, *, title: str | None = None, ax: Axes | None = None
) -> Axes:
    """Draw each expert's share of a layer's tokens, layer by layer, with 95 % intervals.

    Args:
        loads: ``kind`` (of text), ``layer``, ``expert``, ``share`` (of its layer), ``low``
            and ``high``.
        num_experts: Experts of a layer; equal loads are the line.
        title: The finding; default names the largest and the smallest share.
        ax: Where to draw.
    """
    require_columns(loads, ["kind", "layer", "expert", "share", "low", "high"], "expert_loads")
    ax = new_axes(ax, (8.4, 4.2))
    labels, kinds = names(loads, "kind"), list(dict.fromkeys(names(loads, "kind")))
    layers = sorted(set(floats(loads, "layer")))
    colors = dict(zip(kinds, row_colors(kinds, kinds), strict=True))
    markers, width = markers_for(kinds), 0.7 / len(kinds)
    for place, kind in enumerate(kinds):
        own = loads.loc[[label == kind for label in labels]]
        start = np.array([layers.index(layer) for layer in floats(own, "layer")])
        x = start * (num_experts + 1) + floats(own, "expert") + (place + 0.5) * width - 0.35
        share, low, high = (100 * floats(own, c) for c in ("share", "low", "high"))
        ax.errorbar(
            x,
            share,
            yerr=np.clip([share - low, high - share], 0, None),
            fmt=markers[kind],
            color=colors[kind],
            markersize=5,
            elinewidth=1.0,
            capsize=2,
            label=kind,
        )
    reference_line(ax, 100 / num_experts, "equal", axis="y")
    middle = [i * (num_experts + 1) + (num_experts - 1) / 2 for i in range(len(layers))]
    ax.set_xticks(middle, [f"layer {layer:.0f}" for layer in layers])
    for i in range(1, len(layers)):
        ax.axvline(i * (num_experts + 1) - 1, color="#d0d0d0", linewidth=0.8)
    ax.grid(visible=False, axis="x")
    ax.set_ylim(bottom=0)
    ax.set_xlabel(f"The {num_experts} experts of each layer, side by side")
    label_axis(ax, "y", Metric("share", "Tokens of the layer", "%"))
    legend_beside(ax, "Text")
    most, least = (loads.iloc[int(pick(floats(loads, "share")))] for pick in (np.argmax, np.argmin))
    found = (
        f"The busiest expert serves {most['share']:.0%} of a layer's tokens (on {most['kind']}), "
        f"the idlest {least['share']:.0%}; equal would be {100 / num_experts:.3g}%"
    )
    set_title(ax, title or found)
    return ax


@styled
def distinct_experts(
    table: pd.DataFrame, num_experts: int, *, title: str | None = None, ax: Axes | None = None
) -> Axes:
    """Draw how many experts of a layer a decode step touches, by the sequences in it.

    Args:
        table: ``kind`` (of text), ``rows``, ``steps``, ``mean``, ``formula``, ``bound``.
        num_experts: Experts of a layer.
        title: The finding; default compares with the formula where it is farthest.
        ax: Where to draw.
    """
    require_columns(table, ["kind", "rows", "mean", "formula", "bound"], "distinct_experts")
    ax = new_axes(ax, (7.6, 4.4))
    labels, kinds = names(table, "kind"), list(dict.fromkeys(names(table, "kind")))
    colors, markers = colors_for(kinds), markers_for(kinds)
    for kind in kinds:
        own = table.loc[[label == kind for label in labels]].sort_values(by=["rows"])
        x, y = floats(own, "rows"), floats(own, "mean")
        ax.plot(x, y, color=colors[kind], marker=markers[kind], linewidth=1.2, label=kind)
    first = table.drop_duplicates("rows").sort_values(by=["rows"])
    x = floats(first, "rows")
    ax.plot(x, floats(first, "formula"), color=GREY, linestyle="--", label="even choices (formula)")
    ax.plot(x, floats(first, "bound"), color=GREY, linestyle=":", label="at most")
    ax.set_xscale("log", base=2)
    ax.set_xticks(x, [f"{rows:g}" for rows in x])
    ax.minorticks_off()
    ax.set_ylim(0, num_experts * 1.06)
    ax.set_xlabel("Sequences in the decode step")
    label_axis(ax, "y", Metric("distinct", "Distinct experts of a layer"))
    legend_beside(ax)
    gaps = floats(table, "mean") / floats(table, "formula") - 1
    worst = table.iloc[int(np.argmax(np.abs(gaps)))]
    found = (
        f"Within {np.abs(gaps).max():.0%} of the formula; farthest with {worst['rows']:.0f} "
        f"sequences of {worst['kind']}: {worst['mean']:.2f} of {num_experts} experts, "
        f"{worst['formula']:.2f} by formula"
    )
    set_title(ax, title or found)
    return ax
