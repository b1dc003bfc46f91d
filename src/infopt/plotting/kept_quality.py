"""What compressing keys and values costs in quality, over the bytes that are kept."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from infopt.plotting.axes import label_axis, new_axes, reference_line, set_title
from infopt.plotting.data import floats, names, usable_rows
from infopt.plotting.placement import place_labels
from infopt.plotting.style import colors_for, markers_for, styled
from infopt.results.metrics import Metric
from infopt.results.table import require_columns

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes

_COLUMNS = ("kept", "value", "low", "high")


@styled
def kept_quality(
    points: pd.DataFrame,
    metric: Metric,
    *,
    lines: Mapping[str, float] | None = None,
    linear_below: float | None = None,
    reference: str | None = None,
    title: str,
    ax: Axes | None = None,
) -> Axes:
    """Draw a measure of quality over the share of KV bytes that is kept, with 95 % intervals.

    Filled points are told from the reference beyond doubt, hollow ones are not.

    Args:
        points: One row per candidate: ``name``, ``kept`` (share of the reference's bytes),
            ``value``, ``low``, ``high`` and ``differs`` (whether a test or the intervals tell it
            from the reference).
        metric: What ``value`` is; values are multiplied by its ``display_scale``.
        lines: Values to draw lines at, by name, in stored units.
        linear_below: Above this displayed value the vertical axis is logarithmic; None: nowhere.
        reference: Name of the candidate that the others are compared with: black.
        title: The finding.
        ax: Where to draw.
    """
    table, note = usable_rows(points, _COLUMNS, "kept_quality")
    require_columns(table, ["name", "differs"], "kept_quality")
    labels, differs = names(table, "name"), table["differs"].to_numpy(dtype=bool)
    x = 100 * floats(table, "kept")
    value, low, high = (metric.display_scale * floats(table, c) for c in _COLUMNS[1:])
    ax = new_axes(ax, (8.2, 4.6))
    colors, markers = colors_for(labels, reference), markers_for(labels)
    for i, name in enumerate(labels):
        ax.errorbar(
            x[i],
            value[i],
            yerr=np.clip([[value[i] - low[i]], [high[i] - value[i]]], 0, None),
            fmt=markers[name],
            color=colors[name],
            markerfacecolor=colors[name] if differs[i] else "white",
            elinewidth=1.2,
            capsize=2,
            zorder=3,
        )
    for name, place in (lines or {}).items():
        reference_line(ax, place * metric.display_scale, name, axis="y")
    if linear_below is not None:
        ax.set_yscale("symlog", linthresh=linear_below, linscale=0.6)
        ax.yaxis.set_major_formatter(lambda y, _: f"{y:g}")
        ax.set_ylim(-0.2 * linear_below, 2 * float(np.nanmax(high)))
    ax.set_xlim(0, max(float(x.max()), 100.0) * 1.12)
    kept = Metric("kept", "KV bytes kept per token, of the uncompressed", "%", "lower")
    label_axis(ax, "x", kept, notes=["hollow: not told from the reference", note])
    label_axis(ax, "y", metric)
    set_title(ax, title)
    place_labels(ax, np.column_stack([x, value]), labels, [True] * len(labels))
    return ax
