"""Where keys and values begin to dominate a decode step: measured and predicted."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from infopt.plotting.axes import label_axis, legend_beside, new_axes, reference_line, set_title
from infopt.plotting.data import floats, names, usable_rows
from infopt.plotting.style import colors_for, markers_for, styled
from infopt.results.metrics import Metric

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes

_COLUMNS = ("context", "measured", "low", "high", "predicted")


@styled
def kv_share(
    shares: pd.DataFrame, *, title: str, reference: str | None = None, ax: Axes | None = None
) -> Axes:
    """Draw the share of a decode step that keys and values take, over the context.

    Points with 95 % intervals are the time beyond that of a step with hardly any context; dashed
    lines are the share of KV in the bytes that the step reads.

    Args:
        shares: One row per candidate and context: ``name``, ``context``, ``measured``, ``low``,
            ``high`` and ``predicted``, as shares of 1.
        title: The finding.
        reference: Name of the candidate that the others are compared with: black.
        ax: Where to draw.
    """
    table, _ = usable_rows(shares, _COLUMNS, "kv_share")
    labels = names(table, "name")
    unique = list(dict.fromkeys(labels))
    colors, markers = colors_for(unique, reference), markers_for(unique)
    ax = new_axes(ax, (8.4, 4.4))
    for name in unique:
        own = table.loc[[other == name for other in labels]].sort_values(by=["context"])
        x, *values = (floats(own, c) for c in _COLUMNS)
        measured, low, high, predicted = (100 * v for v in values)
        ax.plot(x, predicted, color=colors[name], linestyle="--", linewidth=1.3)
        ax.errorbar(
            x,
            measured,
            yerr=np.clip([measured - low, high - measured], 0, None),
            marker=markers[name],
            color=colors[name],
            linewidth=1.4,
            elinewidth=1.1,
            capsize=2,
            label=name,
        )
    ax.plot([], [], color="#303030", linestyle="--", linewidth=1.3, label="predicted (bytes)")
    reference_line(ax, 50, "half of the step", axis="y")
    # Below 0 lies noise: a longer context that took less time.
    ax.set_ylim(min(0.0, 1.1 * 100 * float(floats(table, "low").min())), 100)
    ax.set_xlim(left=0)
    ax.set_xlabel("Context of each sequence (tokens)")
    label_axis(ax, "y", Metric("share", "Keys and values in a decode step", "%", "lower"))
    legend_beside(ax)
    set_title(ax, title)
    return ax
