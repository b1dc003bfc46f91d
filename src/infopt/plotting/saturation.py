"""What a server does as its load rises, and where it has had enough."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from matplotlib.ticker import LogLocator, NullLocator

from infopt.plotting.axes import label_axis, legend_beside, new_axes, reference_line, set_title
from infopt.plotting.data import Values, in_sentence, read_values, shown, usable_rows
from infopt.plotting.style import BLUE, GREY, VERMILION, styled
from infopt.results.metrics import metric_of

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes

Bracket = tuple[float | None, float | None]


@styled
def load_curve(
    df: pd.DataFrame,
    y: str = "slo.goodput_requests_per_s",
    *,
    x: str = "extra.rate_per_s",
    bracket: Bracket = (None, None),
    limit: float | None = None,
    title: str | None = None,
    ax: Axes | None = None,
) -> Axes:
    """Draw a number over the offered load, hollow where too few requests kept the objective.

    Args:
        df: Rates of a load sweep, from ``load_results``.
        y: Column to draw; on the dashed line goodput would be all that is offered.
        x: Column of the offered load in requests per second.
        bracket: Highest load known to be kept and lowest known not to be, in requests per second;
            None where there is none.
        limit: Line to stay below, in the unit of the table (seconds for a latency).
        title: The finding; default gives the saturation point and the number there.
        ax: Where to draw.
    """
    table, note = usable_rows(df, [x, y], "load_curve")
    across, up = read_values(table, x), read_values(table, y)
    is_good = [bool(value) for value in table["extra.is_good"]]
    ax = new_axes(ax)
    end = float(across.values.max()) * 1.05
    _draw_bracket(ax, bracket, end)
    _draw_points(ax, across, up, is_good)
    if y == "slo.goodput_requests_per_s":
        ax.plot([0, end], [0, end], color=GREY, linewidth=1.2, linestyle="--", label="all offered")
        ax.set_ylim(0, float(np.nanmax([*up.values, *up.high])) * 1.1)
    elif limit is not None:
        # Latencies of a growing queue dwarf the limit on a linear axis.
        ax.set_yscale("log")
        ax.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        ax.yaxis.set_minor_locator(NullLocator())
        ax.yaxis.set_major_formatter("{x:g}")
        place = limit * up.metric.display_scale
        reference_line(ax, place, f"limit {shown(place, up.metric)}", axis="y")
    ax.set_xlim(0, end)
    label_axis(ax, "x", metric_of("throughput.offered_requests_per_s"), notes=[note])
    label_axis(ax, "y", up.metric)
    legend_beside(ax, "Objective")
    set_title(ax, title or _finding(across, up, bracket))
    return ax


def _draw_bracket(ax: Axes, bracket: Bracket, end: float) -> None:
    low, high = bracket
    if low is not None:
        ax.axvline(low, color=VERMILION, linewidth=1.5, label="saturation point")
    if low is not None and high is not None and high > low:
        ax.axvspan(
            low, min(high, end), color=VERMILION, alpha=0.15, label="in between", linewidth=0
        )


def _draw_points(ax: Axes, x: Values, y: Values, is_good: list[bool]) -> None:
    order = np.argsort(x.values, kind="stable")
    ax.plot(x.values[order], y.values[order], color=BLUE, linewidth=1.5, zorder=2)
    for kept, label in ((True, "kept"), (False, "not kept")):
        rows = [i for i in order if is_good[i] == kept]
        if rows:
            ax.errorbar(
                x.values[rows],
                y.values[rows],
                yerr=y.errors[:, rows] if y.has_intervals else None,
                color=BLUE,
                marker="o",
                markerfacecolor=BLUE if kept else "white",
                linestyle="none",
                capsize=3,
                elinewidth=1.2,
                label=label,
                zorder=3,
            )


def _finding(x: Values, y: Values, bracket: Bracket) -> str:
    low, high = bracket
    label = in_sentence(y.metric.label)
    if low is None:
        lowest = shown(float(x.values.min()), metric_of("throughput.offered_requests_per_s"))
        return f"Even {lowest} is too much"
    at = int(np.argmin(np.abs(x.values - low)))
    value = shown(float(y.values[at]), y.metric)
    load = shown(low, metric_of("throughput.offered_requests_per_s"))
    more = "" if high is not None else " at least"
    return f"The server takes{more} {load}; {label} there is {value}"
