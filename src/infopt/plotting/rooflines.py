"""Work done against what the machine's memory and arithmetic allow."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from infopt.errors import ResultError
from infopt.plotting.axes import legend_beside, new_axes, set_title
from infopt.plotting.bars import cut_name
from infopt.plotting.data import floats, names, usable_rows
from infopt.plotting.placement import place_labels
from infopt.plotting.style import (
    BLACK,
    BLUE,
    GREEN,
    GREY,
    LIGHT_GREY,
    MARKERS,
    ORANGE,
    PURPLE,
    SKY,
    VERMILION,
    YELLOW,
    colors_for,
    markers_for,
    styled,
)
from infopt.results.table import require_columns

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes

_COLUMNS = ("roofline.bytes", "roofline.flops", "roofline.measured_s")
_GIGA = 1e9

OP_COLUMNS = ("step", "op", "measured_s", "predicted_s", "bytes", "flops")
OP_COLORS = {
    "norm": PURPLE,
    "qkv": SKY,
    "rotary": "#303030",
    "attention": GREEN,
    "output": BLUE,
    "gate_up": ORANGE,
    "activation": GREY,
    "down": YELLOW,
    "head": VERMILION,
    "sampling": "#7B4B2A",
    "between": LIGHT_GREY,
}
"""Colour of each op of a step, the same in all plots of ops."""


@styled
def roofline(
    df: pd.DataFrame,
    bandwidth: float,
    flops: float,
    *,
    label: str = "slug",
    color: str | None = None,
    title: str | None = None,
    ax: Axes | None = None,
) -> Axes:
    """Draw achieved FLOP/s over FLOP per byte, under the roof of the machine.

    Each point is named with the share of the roof that it reaches: in the legend, or beside it
    where colours stand for groups.

    Args:
        df: From ``load_results`` (or a table with ``roofline.bytes``, ``roofline.flops`` and
            ``roofline.measured_s``).
        bandwidth: Measured memory bandwidth in bytes per second.
        flops: Measured FLOP/s.
        label: Column with the names of points.
        color: Column whose values have colours.
        title: The finding; default tells how close the best run comes.
        ax: Where to draw.

    Raises:
        ResultError: Bandwidth or FLOP/s is not positive, or no run has counted work.
    """
    _check_limits(bandwidth, flops)
    table, _ = usable_rows(df, _COLUMNS, "roofline")
    moved, work, time_s = (floats(table, column) for column in _COLUMNS)
    intensity, achieved = work / moved, work / time_s
    labels = names(table, label)
    ax = new_axes(ax, (8.4, 4.4))
    _draw_roof(ax, intensity, bandwidth, flops)
    groups = names(table, color) if color else labels
    colors, markers = colors_for(groups), markers_for(groups)
    share = achieved / np.minimum(flops, bandwidth * intensity)
    texts = [f"{cut_name(n)} ({part:.0%})" for n, part in zip(labels, share, strict=True)]
    for i, group in enumerate(groups):
        style: dict[str, Any] = {"marker": markers[group], "color": colors[group]}
        own = group if color else texts[i]
        own = own if groups.index(group) == i else "_"  # one entry in the legend
        ax.plot(intensity[i], achieved[i] / _GIGA, linestyle="none", label=own, zorder=3, **style)
    _name_axes(ax)
    legend_beside(ax, "tokens (share of the roof)" if color else "Share of the roof")
    best = int(np.argmax(share))
    set_title(ax, title or f"{labels[best]} comes closest to the roof: {share[best]:.0%}")
    if color:
        points = np.column_stack([intensity, achieved / _GIGA])
        place_labels(ax, points, texts, [True] * len(texts))
    return ax


@styled
def op_roofline(
    ops: pd.DataFrame,
    bandwidth: float,
    flops: float,
    *,
    title: str | None = None,
    ax: Axes | None = None,
) -> Axes:
    """Draw single ops under the roof: a colour per op, a marker per step.

    Args:
        ops: One row per step and op: ``step``, ``op``, ``measured_s``, ``predicted_s``, ``bytes``
            and ``flops``. Rows without counted work are left out.
        bandwidth: Measured memory bandwidth in bytes per second.
        flops: Measured FLOP/s.
        title: The finding; default names the op that takes longest beyond its limit.
        ax: Where to draw.

    Raises:
        ResultError: Bandwidth or FLOP/s is not positive, columns are missing, or no op has work.
    """
    _check_limits(bandwidth, flops)
    table, _ = usable_rows(ops, OP_COLUMNS[2:], "op_roofline")
    require_columns(table, OP_COLUMNS[:2], "op_roofline")
    ax = new_axes(ax, (8.4, 4.8))
    intensity = floats(table, "flops") / floats(table, "bytes")
    achieved = floats(table, "flops") / floats(table, "measured_s")
    _draw_roof(ax, intensity, bandwidth, flops)
    steps = list(dict.fromkeys(names(table, "step")))
    markers = dict(zip(steps, MARKERS, strict=False))
    for op, step, x, y in zip(
        names(table, "op"), names(table, "step"), intensity, achieved / _GIGA, strict=True
    ):
        ax.plot(x, y, linestyle="none", marker=markers[step], color=OP_COLORS[op], alpha=0.9)
    for op in dict.fromkeys(names(table, "op")):
        ax.plot([], [], linestyle="none", marker="o", color=OP_COLORS[op], label=op)
    for step in steps:
        ax.plot([], [], linestyle="none", marker=markers[step], color=GREY, label=step)
    _name_axes(ax)
    legend_beside(ax, "Op (colour), step (marker)")
    beyond = floats(table, "measured_s") - floats(table, "predicted_s")
    worst = table.iloc[int(np.argmax(beyond))]
    default = f"Furthest beyond its limit: {worst['op']}, {beyond.max() * 1e3:.3g} ms of a "
    set_title(ax, title or f"{default}{worst['step']}")
    return ax


def _check_limits(bandwidth: float, flops: float) -> None:
    for name, value in (("bandwidth", bandwidth), ("flops", flops)):
        if not value > 0:
            raise ResultError(f"{name} must be positive, got {value!r}.", field=name, value=value)


def _name_axes(ax: Axes) -> None:
    ax.set_xscale("log")
    ax.set_yscale("log")
    ax.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
    ax.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
    ax.set_xlabel("Arithmetic intensity (FLOP per byte moved)")
    ax.set_ylabel("Achieved (GFLOP/s)   better →")


def _draw_roof(ax: Axes, intensity: np.ndarray, bandwidth: float, flops: float) -> None:
    ridge = flops / bandwidth
    left = min(float(intensity.min()), ridge) / 3
    right = max(float(intensity.max()), ridge) * 3
    middle = float(np.sqrt(left * ridge))
    x = np.array([left, ridge, right])
    ax.plot(x, np.minimum(flops, bandwidth * x) / _GIGA, color=BLACK, linewidth=1.6, zorder=2)
    ax.axvline(ridge, color=GREY, linewidth=1, linestyle=":", zorder=1)
    ax.set_xlim(left, right)
    text = {"textcoords": "offset points", "fontsize": 8, "color": GREY, "zorder": 4}
    ax.annotate(
        f"{flops / _GIGA:.3g} GFLOP/s", (right, flops / _GIGA), xytext=(0, 4), ha="right", **text
    )
    ax.annotate(
        f"{bandwidth / _GIGA:.3g} GB/s",
        (middle, bandwidth * middle / _GIGA),
        xytext=(-5, 6),
        ha="right",
        **text,
    )
    ax.annotate(
        f"ridge: {ridge:.3g}",
        (ridge, 0),
        xycoords=ax.get_xaxis_transform(),
        xytext=(4, 5),
        ha="left",
        **text,
    )
