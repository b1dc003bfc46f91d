"""How many sequences a pool holds: counted, and predicted by the memory model."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from matplotlib.ticker import MaxNLocator

from infopt.plotting.axes import label_axis, legend_beside, new_axes, set_title
from infopt.plotting.bars import name_rows, row_size
from infopt.plotting.data import floats, names, usable_rows
from infopt.plotting.style import VERMILION, row_colors, styled
from infopt.results.html import format_value
from infopt.results.metrics import Metric

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes

_NAME, _COUNT, _PREDICTED = (
    "extra.candidate",
    "extra.capacity_num_seqs",
    "extra.capacity_predicted_seqs",
)


@styled
def capacity_bars(
    rows: pd.DataFrame, *, title: str, reference: str | None = None, ax: Axes | None = None
) -> Axes:
    """Draw the sequences that each candidate held at once, with the prediction as a line.

    A count has no interval: the allocator gives the same one each time.

    Args:
        rows: Candidates of a slice that counted (columns ``extra.capacity_*``).
        title: The finding.
        reference: Name of the candidate that the others are compared with: black.
        ax: Where to draw.
    """
    table, note = usable_rows(rows, [_COUNT, _PREDICTED], "capacity_bars")
    labels, counts = names(table, _NAME), floats(table, _COUNT)
    predicted = floats(table, _PREDICTED)
    ax = new_axes(ax, row_size(len(labels)))
    places = np.arange(len(labels))
    ax.barh(places, counts, height=0.62, color=row_colors(labels, None, reference))
    ax.plot(
        predicted,
        places,
        linestyle="",
        marker="|",
        markersize=22,
        markeredgewidth=2.5,
        color=VERMILION,
        label="predicted",
    )
    for place, count, expected in zip(places, counts, predicted, strict=True):
        ax.annotate(
            format_value(float(count), 3),
            (max(count, expected), place),
            xytext=(6, 0),
            textcoords="offset points",
            va="center",
            fontsize=9,
        )
    name_rows(ax, labels)
    ax.margins(x=0.14)
    ax.xaxis.set_major_locator(MaxNLocator(integer=True))
    label_axis(ax, "x", Metric("count", "Sequences in the pool", "at once", "higher"), notes=[note])
    legend_beside(ax)
    set_title(ax, title)
    return ax
