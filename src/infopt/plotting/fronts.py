"""Two objectives against each other, with the front of what is not beaten."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import numpy as np

from infopt.plotting.axes import label_axis, legend_beside, new_axes, reference_line, set_title
from infopt.plotting.data import Values, names, read_values, shown, usable_rows
from infopt.plotting.placement import place_labels
from infopt.plotting.style import LIGHT_GREY, colors_for, markers_for, styled

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes


@styled
def pareto(
    df: pd.DataFrame,
    x: str,
    y: str,
    *,
    color: str | None = "stage",
    label: str | None = "slug",
    front: str = "pareto",
    feasible: str = "feasible",
    chosen: str | None = None,
    x_limit: float | None = None,
    y_limit: float | None = None,
    title: str | None = None,
    ax: Axes | None = None,
) -> Axes:
    """Draw runs by two numbers and the front of those that no other beats in both.

    Args:
        df: From ``load_results`` (or ``pareto_front`` and ``filter_runs``, whose marks are used).
        x: Column of the horizontal axis.
        y: Column of the vertical axis.
        color: Column whose values have colours (a technique).
        label: Column with the names of points; front and chosen run are always named, others where
            there is room. All are, in place of a legend, where colours stand for the same names.
        front: Column that marks the front; if absent, the front of x and y is computed.
        feasible: Column that marks allowed runs; the others are drawn hollow.
        chosen: Run (``stage/slug``) to circle.
        x_limit: Limit in stored units, drawn as a line.
        y_limit: Limit in stored units, drawn as a line.
        title: The finding; default names the front.
        ax: Where to draw.
    """
    table, note = usable_rows(df, [x, y], "pareto")
    across, up = read_values(table, x), read_values(table, y)
    is_front = table[front].to_numpy(bool) if front in table.columns else _front(across, up)
    is_open = ~table[feasible].to_numpy(bool) if feasible in table.columns else ~_all(table)
    ax = new_axes(ax)
    _draw_front(ax, across, up, is_front)
    _draw_points(ax, across, up, names(table, color), is_open)
    is_chosen = (table["run"] == chosen).to_numpy() if chosen is not None else ~_all(table)
    points = np.column_stack([across.values, up.values])
    if is_chosen.any():
        ax.scatter(*points[is_chosen].T, s=230, facecolors="none", edgecolors="black", zorder=4)
    _draw_limits(ax, (across, x_limit), (up, y_limit))
    hollow = "hollow: misses a limit" if is_open.any() else None
    label_axis(ax, "x", across.metric, notes=[note, hollow])
    label_axis(ax, "y", up.metric)
    ax.margins(0.12)
    labels, is_named = names(table, label), color is not None and color == label
    if color is not None and not is_named:
        legend_beside(ax)
    set_title(ax, title or _finding(labels, is_front))
    place_labels(ax, points, labels, list(is_front | is_chosen | is_named))
    return ax


def _front(x: Values, y: Values) -> np.ndarray:
    """Return which points no other beats in both numbers (unknown directions: lower is better)."""
    signs = [-1.0 if v.metric.better == "higher" else 1.0 for v in (x, y)]
    costs = np.column_stack([x.values * signs[0], y.values * signs[1]])
    beaten = [((costs <= c).all(axis=1) & (costs < c).any(axis=1)).any() for c in costs]
    return ~np.array(beaten)


def _all(table: pd.DataFrame) -> np.ndarray:
    return np.ones(len(table), dtype=bool)


def _draw_front(ax: Axes, x: Values, y: Values, is_front: np.ndarray) -> None:
    """Draw the stairs between front points: everything behind them is beaten."""
    order = np.argsort(x.values[is_front], kind="stable")
    where: Literal["pre", "post"] = "pre" if x.metric.better == "higher" else "post"
    ax.step(
        x.values[is_front][order],
        y.values[is_front][order],
        where=where,
        color=LIGHT_GREY,
        linewidth=2,
        zorder=1,
    )


def _draw_points(ax: Axes, x: Values, y: Values, groups: list[str], is_open: np.ndarray) -> None:
    colors, markers = colors_for(groups), markers_for(groups)
    for group in sorted(set(groups)):
        rows = np.array([g == group for g in groups])
        for hollow in (False, True):
            part = rows & (is_open == hollow)
            if not part.any():
                continue
            ax.errorbar(
                x.values[part],
                y.values[part],
                xerr=x.errors[:, part] if x.has_intervals else None,
                yerr=y.errors[:, part] if y.has_intervals else None,
                fmt=markers[group],
                color=colors[group],
                markerfacecolor="white" if hollow else colors[group],
                elinewidth=1,
                label=None if hollow and (rows & ~is_open).any() else group or None,
                zorder=3,
            )


def _draw_limits(ax: Axes, x: tuple[Values, float | None], y: tuple[Values, float | None]) -> None:
    for axis, (values, limit) in (("x", x), ("y", y)):
        if limit is not None:
            scaled = limit * values.metric.display_scale
            name = f"limit {shown(scaled, values.metric)}"
            reference_line(ax, scaled, name, axis="x" if axis == "x" else "y")


def _finding(labels: list[str], is_front: np.ndarray) -> str:
    on_front = [name for name, is_on in zip(labels, is_front, strict=True) if is_on and name]
    if len(is_front) == 1:
        return f"The only run: {labels[0]}" if labels[0] else "The only run"
    count = f"{int(is_front.sum())} of {len(is_front)} runs are not beaten"
    return f"{count}: {', '.join(on_front)}" if 0 < len(on_front) <= 5 else count
