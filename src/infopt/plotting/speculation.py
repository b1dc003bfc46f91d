"""Speculative decoding: gain by kind of traffic, acceptance by position, decisions, the formula."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from infopt.plotting.axes import label_axis, legend_beside, new_axes, reference_line, set_title
from infopt.plotting.data import floats, names
from infopt.plotting.style import (
    BLUE,
    GREEN,
    GREY,
    LIGHT_GREY,
    ORANGE,
    SKY,
    color_of,
    colors_for,
    markers_for,
    styled,
)
from infopt.results.metrics import Metric
from infopt.results.table import require_columns

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes

_GAIN = Metric("gain", "Decode rate, ratio to no speculation", better="higher")
_KEPT = Metric("kept", "Guesses kept", display_unit="%", better="higher")
_DECISIONS = {
    "on": ("guesses that pay", GREEN),
    "probe": ("a try", ORANGE),
    "off": ("none: they do not pay", GREY),
    "empty": ("none: nothing found", LIGHT_GREY),
    "learn": ("none: to learn what that takes", SKY),
}


@styled
def cell_gains(
    cells: pd.DataFrame, *, name: str, title: str | None = None, ax: Axes | None = None
) -> Axes:
    """Draw the gain of each kind of traffic with its 95 % interval; hollow is undecided.

    Args:
        cells: ``traffic``, ``batch``, ``ratio``, ``low``, ``high``, ``verdict``.
        name: The method, which gives the colour.
        title: The finding; default says it from the table.
        ax: Where to draw.
    """
    require_columns(cells, ["traffic", "batch", "ratio", "low", "high", "verdict"], "cell_gains")
    ax = new_axes(ax, (7.6, 1.6 + 0.32 * len(cells)))
    ratio, low, high = (floats(cells, column) for column in ("ratio", "low", "high"))
    verdicts = names(cells, "verdict")
    for place in range(len(cells)):
        is_open = verdicts[place] == "undecided"
        ax.errorbar(
            ratio[place],
            place,
            xerr=np.clip([[ratio[place] - low[place]], [high[place] - ratio[place]]], 0, None),
            fmt="o",
            color=color_of(name),
            markerfacecolor="white" if is_open else color_of(name),
            elinewidth=1.3,
            capsize=3,
        )
    labels = [
        f"{t}, {b:.0f} at once" for t, b in zip(cells["traffic"], cells["batch"], strict=True)
    ]
    ax.set_yticks(range(len(cells)), labels)
    ax.set_ylim(len(cells) - 0.5, -0.5)
    ax.set_xlim(left=min(0.5, float(low.min()) * 0.95), right=float(high.max()) * 1.08)
    reference_line(ax, 1.0, "off")
    label_axis(ax, "x", _GAIN, notes=["hollow: undecided"])
    won, lost = verdicts.count("better"), verdicts.count("worse")
    best = int(np.argmax(ratio))
    set_title(
        ax,
        title
        or f"{name}: {won} of {len(cells)} kinds of traffic gain, {lost} lose; most "
        f"{ratio[best]:.2f}x on {labels[best]}",
    )
    return ax


@styled
def acceptance_by_position(
    table: pd.DataFrame, *, name: str, title: str | None = None, ax: Axes | None = None
) -> Axes:
    """Draw the share of guesses kept by their position in the draft, a line per kind of traffic.

    Args:
        table: ``traffic``, ``position``, ``proposed``, ``rate``, ``low``, ``high`` (of the rate).
        name: The method.
        title: The finding; default says it from the table.
        ax: Where to draw.
    """
    columns = ["traffic", "position", "proposed", "rate", "low", "high"]
    require_columns(table, columns, "acceptance_by_position")
    ax = new_axes(ax, (7.6, 4.2))
    labels = names(table, "traffic")
    kinds = list(dict.fromkeys(labels))
    colors, markers = colors_for(kinds), markers_for(kinds)
    rates: dict[str, tuple[float, float]] = {}
    for kind in kinds:
        own = table.loc[[label == kind for label in labels]].sort_values(by=["position"])
        made, rate = floats(own, "proposed"), floats(own, "rate")
        ends = [rate - floats(own, "low"), floats(own, "high") - rate]
        rates[kind] = float(rate[0]), float(rate[-1])
        ax.errorbar(
            floats(own, "position"),
            100 * rate,
            yerr=100 * np.clip(ends, 0, None),
            color=colors[kind],
            marker=markers[kind],
            markersize=5,
            capsize=2,
            elinewidth=1.0,
            label=f"{kind} ({made.sum():.0f} guesses)",
        )
    ax.set_ylim(0, 105)
    ax.set_xlabel(
        "Position of the guess in its draft\n"
        "a guess is kept only with all before it; lines: 95 % intervals"
    )
    ax.set_xticks(sorted({int(p) for p in floats(table, "position")}))
    label_axis(ax, "y", _KEPT)
    legend_beside(ax)
    best = max(rates, key=lambda kind: rates[kind][0])
    worst = min(rates, key=lambda kind: rates[kind][0])
    first = f"{name}: first guesses are kept in {rates[best][0]:.0%} on {best}"
    found = first + (f", {rates[worst][0]:.0%} on {worst}" if worst != best else "")
    set_title(ax, title or found)
    return ax


@styled
def decision_shares(
    cells: pd.DataFrame, *, title: str | None = None, ax: Axes | None = None
) -> Axes:
    """Draw what was decided in each cell's steps, as shares.

    Args:
        cells: ``traffic``, ``batch`` and ``steps_<decision>`` of each.
        title: The finding; default says it from the table.
        ax: Where to draw.
    """
    columns = [f"steps_{decision}" for decision in _DECISIONS]
    require_columns(cells, ["traffic", "batch", *columns], "decision_shares")
    ax = new_axes(ax, (8.4, 1.6 + 0.34 * len(cells)))
    counts = np.array([floats(cells, column) for column in columns])
    shares = 100 * counts / np.maximum(counts.sum(axis=0), 1)
    start = np.zeros(len(cells))
    for (label, color), share in zip(_DECISIONS.values(), shares, strict=True):
        ax.barh(range(len(cells)), share, left=start, color=color, label=label, height=0.7)
        start = start + share
    labels = [
        f"{t}, {b:.0f} at once" for t, b in zip(cells["traffic"], cells["batch"], strict=True)
    ]
    ax.set_yticks(range(len(cells)), labels)
    ax.set_ylim(len(cells) - 0.5, -0.5)
    ax.set_xlim(0, 100)
    ax.grid(visible=False, axis="y")
    label_axis(ax, "x", Metric("share", "Steps", display_unit="%"))
    legend_beside(ax, "In the step")
    on = shares[list(_DECISIONS).index("on")]
    most, least = int(np.argmax(on)), int(np.argmin(on))
    found = f"Guesses paid in {on[most]:.0f} % of the steps on {labels[most]}"
    if most != least:
        found += f", in {on[least]:.0f} % on {labels[least]}"
    set_title(ax, title or found)
    return ax


@styled
def formula_scatter(
    cells: pd.DataFrame, *, title: str | None = None, ax: Axes | None = None
) -> Axes:
    """Draw measured gains over those of the formula; the band is 10 % on either side.

    Args:
        cells: ``candidate``, ``ratio``, ``low``, ``high``, ``predicted``.
        title: The finding; default says it from the table.
        ax: Where to draw.
    """
    require_columns(cells, ["candidate", "ratio", "low", "high", "predicted"], "formula_scatter")
    ax = new_axes(ax, (6.6, 4.8))
    labels = names(cells, "candidate")
    kinds = list(dict.fromkeys(labels))
    colors, markers = colors_for(kinds), markers_for(kinds)
    predicted, ratio = floats(cells, "predicted"), floats(cells, "ratio")
    low, high = floats(cells, "low"), floats(cells, "high")
    ends = np.array([min(predicted.min(), low.min()) * 0.9, max(predicted.max(), high.max()) * 1.1])
    ax.fill_between(ends, 0.9 * ends, 1.1 * ends, color=BLUE, alpha=0.10, linewidth=0)
    ax.plot(ends, ends, color=GREY, linestyle="--", linewidth=1.2)
    for kind in kinds:
        own = np.array([label == kind for label in labels])
        errors = np.clip([ratio[own] - low[own], high[own] - ratio[own]], 0, None)
        ax.errorbar(
            predicted[own],
            ratio[own],
            yerr=errors,
            fmt=markers[kind],
            color=colors[kind],
            markersize=6,
            elinewidth=1.0,
            capsize=2,
            linestyle="none",
            label=kind,
        )
    ax.set_xlim(*ends)
    ax.set_ylim(*ends)
    ax.set_xlabel(
        "By formula, at the measured acceptance and costs\nlines: 95 % intervals; band: 10 %"
    )
    label_axis(ax, "y", _GAIN)
    legend_beside(ax)
    near = int((np.abs(ratio / predicted - 1) <= 0.1).sum())
    found = f"{near} of {len(cells)} measured gains are within 10 % of the formula"
    set_title(ax, title or found)
    return ax


def _cell_names(cells: pd.DataFrame) -> list[str]:
    pairs = zip(names(cells, "traffic"), floats(cells, "batch"), strict=True)
    return [f"{traffic}, {batch:.0f} at once" for traffic, batch in pairs]
