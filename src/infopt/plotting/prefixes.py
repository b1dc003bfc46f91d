"""What a prefix cache finds over time, and what is left of each prompt in the end."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from matplotlib.ticker import MaxNLocator

from infopt.plotting.axes import label_axis, legend_beside, new_axes, set_title
from infopt.plotting.data import floats, names, usable_rows
from infopt.plotting.style import GREY, colors_for, markers_for, styled
from infopt.results.metrics import Metric

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes


@styled
def prefix_hits(requests: pd.DataFrame, *, title: str, ax: Axes | None = None) -> Axes:
    """Draw the share of prompt tokens found so far, request by request.

    Args:
        requests: One row per candidate and request, in order of arrival: ``name``, ``prompt``,
            ``cached`` and ``shareable`` tokens.
        title: The finding.
        ax: Where to draw.
    """
    table, _ = usable_rows(requests, ["prompt", "cached", "shareable"], "prefix_hits")
    ax = new_axes(ax, (8.0, 4.0))
    labels = names(table, "name")
    unique = list(dict.fromkeys(labels))
    colors, markers = colors_for(unique), markers_for(unique)
    for name in unique:
        own = table.loc[[other == name for other in labels]]
        places = np.arange(1, len(own) + 1)
        seen = np.cumsum(floats(own, "prompt"))
        if name == unique[0]:
            best = 100 * np.cumsum(floats(own, "shareable")) / seen
            style = {"color": GREY, "linestyle": ":", "zorder": 4}  # over the line that reaches it
            ax.plot(places, best, label="room for everything", **style)
        share = 100 * np.cumsum(floats(own, "cached")) / seen
        ax.plot(places, share, color=colors[name], marker=markers[name], markersize=5, label=name)
    ax.set_ylim(0, 100)
    ax.xaxis.set_major_locator(MaxNLocator(integer=True))
    ax.set_xlabel("Requests so far, in order of arrival")
    label_axis(ax, "y", Metric("hits", "Prompt tokens found so far", "%", "higher"))
    legend_beside(ax)
    set_title(ax, title)
    return ax


@styled
def prefix_survivors(requests: pd.DataFrame, *, title: str, ax: Axes | None = None) -> Axes:
    """Draw how much of each prompt is still cached after the last one.

    Args:
        requests: One row per candidate and request, in order of arrival: ``name`` and ``kept``, the
            share of the prompt's pages that a new request would find.
        title: The finding.
        ax: Where to draw.
    """
    table, _ = usable_rows(requests, ["kept"], "prefix_survivors")
    ax = new_axes(ax, (8.0, 4.0))
    labels = names(table, "name")
    unique = list(dict.fromkeys(labels))
    colors, width = colors_for(unique), 0.8 / len(unique)
    for rank, name in enumerate(unique):
        kept = 100 * floats(table.loc[[other == name for other in labels]], "kept")
        places = np.arange(1, len(kept) + 1) + (rank - (len(unique) - 1) / 2) * width
        ax.bar(places, kept, width=width, color=colors[name], label=name)
    ax.set_ylim(0, 105)
    ax.xaxis.set_major_locator(MaxNLocator(integer=True))
    ax.set_xlabel("Request, in order of arrival (the last ones are the newest)")
    label_axis(ax, "y", Metric("kept", "Pages of it still cached", "%", "higher"))
    legend_beside(ax)
    set_title(ax, title)
    return ax
