"""Routing between two models: quality over the strong model's share, and over what it costs."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from infopt.plotting.axes import label_axis, legend_beside, new_axes, reference_line, set_title
from infopt.plotting.data import floats, names
from infopt.plotting.style import GREY, colors_for, markers_for, styled
from infopt.plotting.verdict_dots import NOTE, verdict_dots
from infopt.results.metrics import Metric
from infopt.results.table import require_columns

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes


@styled
def routing_curves(
    curves: pd.DataFrame,
    *,
    x: Metric,
    random: str = "random",
    title: str | None = None,
    ax: Axes | None = None,
) -> Axes:
    """Draw the share of right answers of routing policies over what a policy spends.

    A dashed line joins the cheap model alone with the strong one alone: what a random policy has.
    Each line has its 95 % intervals at two places of its own, so that they can be told apart.

    Args:
        curves: ``policy``, ``quality``, ``quality_low``, ``quality_high`` (shares) and a column
            named ``x.column``.
        x: What is spent (a share of the strong model, seconds per request, ...).
        random: Policy that is drawn as the dashed line alone.
        title: The finding; default names the policy with the highest mean.
        ax: Where to draw.
    """
    required = ["policy", "quality", "quality_low", "quality_high", x.column]
    require_columns(curves, required, "routing_curves")
    ax = new_axes(ax, (8.4, 4.6))
    labels = names(curves, "policy")
    policies = [name for name in dict.fromkeys(labels) if name != random]
    colors, markers = colors_for(policies), markers_for(policies)
    for place, name in enumerate(policies):
        own = curves.loc[[label == name for label in labels]]
        spent = floats(own, x.column) * x.display_scale
        quality, low, high = (100 * floats(own, c) for c in required[1:4])
        ax.plot(spent, quality, color=colors[name], linewidth=1.5)
        at = np.array([2 + place, 11 + place]) % len(own)
        ax.errorbar(
            spent[at],
            quality[at],
            yerr=np.clip([quality[at] - low[at], high[at] - quality[at]], 0, None),
            fmt=markers[name],
            color=colors[name],
            elinewidth=1.1,
            capsize=2,
        )
        ax.plot([], [], color=colors[name], marker=markers[name], linewidth=1.5, label=name)
    alone = curves.loc[[label == labels[0] for label in labels]] if policies else curves
    drawn = curves.loc[[label == random for label in labels]]
    ends = (drawn if len(drawn) else alone).iloc[[0, -1]]
    ax.plot(
        floats(ends, x.column) * x.display_scale,
        100 * floats(ends, "quality"),
        color=GREY,
        linestyle="--",
        linewidth=1.3,
        label=random,
    )
    label_axis(ax, "x", x)
    label_axis(ax, "y", Metric("quality", "Right answers", "%", better="higher"))
    legend_beside(ax, "Policy")
    set_title(ax, title or _highest(curves, labels))
    return ax


def _highest(curves: pd.DataFrame, labels: list[str]) -> str:
    means = {
        name: float(floats(curves.loc[[label == name for label in labels]], "quality").mean())
        for name in dict.fromkeys(labels)
    }
    best = max(means, key=lambda name: means[name])
    return f"{best} has the highest mean over all shares: {means[best]:.1%} right"


@styled
def routing_lifts(table: pd.DataFrame, *, title: str | None = None, ax: Axes | None = None) -> Axes:
    """Draw what policies gain over a random one of the same share, with 95 % intervals.

    A triangle up is better, down is worse, a hollow circle is undecided.

    Args:
        table: ``policy``, ``lift``, ``low``, ``high`` (shares of right answers), ``verdict``.
        title: The finding; default counts the verdicts.
        ax: Where to draw.
    """
    require_columns(table, ["policy", "lift", "low", "high", "verdict"], "routing_lifts")
    ax = new_axes(ax, (7.6, 1.8 + 0.36 * len(table)))
    lift, low, high = (100 * floats(table, column) for column in ("lift", "low", "high"))
    found = verdict_dots(ax, names(table, "policy"), names(table, "verdict"), lift, low, high)
    reference_line(ax, 0.0, "random")
    metric = Metric("lift", "Right answers above a random policy", "points", better="higher")
    label_axis(ax, "x", metric, notes=[NOTE])
    set_title(ax, title or f"Policies against a random one of the same share: {found}")
    return ax
