"""Goodput of a choice beside that of the baselines one would serve otherwise."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from infopt.plotting.axes import label_axis, new_axes, set_title
from infopt.plotting.bars import name_rows, row_size
from infopt.plotting.data import floats, names, usable_rows
from infopt.plotting.style import row_colors, styled
from infopt.results.html import format_ratio, format_value
from infopt.results.metrics import metric_of
from infopt.results.table import require_columns

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes

_COLUMN = "goodput_per_s"


@styled
def goodput_gains(gains: pd.DataFrame, *, title: str | None = None, ax: Axes | None = None) -> Axes:
    """Draw a bar per configuration; behind each baseline, how many times better the choice is.

    Args:
        gains: The choice first, then a row per baseline: ``name``, ``technique`` (has the colour),
            ``goodput_per_s``, and ``ratio``, ``low``, ``high`` of the choice over the baseline (NaN
            for the choice itself and where no pair could be compared).
        title: The finding; default says it from the table.
        ax: Where to draw.
    """
    table, _ = usable_rows(gains, [_COLUMN], "goodput_gains")
    require_columns(table, ["name", "technique", "ratio", "low", "high"], "goodput_gains")
    labels, goodput = names(table, "name"), floats(table, _COLUMN)
    ratios = list(zip(*(floats(table, c) for c in ("ratio", "low", "high")), strict=True))
    ax = new_axes(ax, row_size(len(labels)))
    techniques = names(table, "technique")
    ax.barh(range(len(labels)), goodput, height=0.62, color=row_colors(techniques))
    for place, (value, ratio) in enumerate(zip(goodput, ratios, strict=True)):
        text = format_value(float(value), 3)
        if np.isfinite(ratio[0]):
            text += f"    the choice: {format_ratio(*ratio)}"
        style = {"textcoords": "offset points", "va": "center", "fontsize": 9}
        ax.annotate(text, (value, place), xytext=(5, 0), **style)
    name_rows(ax, labels)
    ax.set_xlim(0, 1.55 * float(goodput.max()))  # room for the texts behind the bars
    label_axis(ax, "x", metric_of("slo.goodput_requests_per_s"), notes=["[low, high]: 95 %"])
    set_title(ax, title or _finding(techniques, goodput, ratios))
    return ax


def _finding(techniques: list[str], goodput: np.ndarray, ratios: list[tuple[float, ...]]) -> str:
    parts = [
        f"{ratio[0]:.1f}x {name}"
        for name, ratio in zip(techniques, ratios, strict=True)
        if np.isfinite(ratio[0])
    ]
    text = f"{format_value(float(goodput[0]), 3)} requests/s keep the objective"
    return f"{text}, {' and '.join(parts)}" if parts else text
