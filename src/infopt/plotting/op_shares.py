"""What the ops of a step take of its time, and how much of that the machine's limits explain."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from infopt.errors import ResultError
from infopt.plotting.axes import legend_beside, new_axes, set_title
from infopt.plotting.bars import name_rows, row_size
from infopt.plotting.data import floats, names
from infopt.plotting.rooflines import OP_COLORS, OP_COLUMNS
from infopt.plotting.style import styled
from infopt.results.table import require_columns

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes

_MIN_LABEL_SHARE = 0.06
_HEIGHT = 0.62
_PALE = 0.35


@styled
def op_shares(ops: pd.DataFrame, *, title: str | None = None, ax: Axes | None = None) -> Axes:
    """Draw a bar per step, cut into the shares of its ops; full colour is what the limits explain.

    Args:
        ops: One row per step and op: ``step``, ``op``, ``measured_s`` and ``predicted_s`` (missing
            where an op has no limit).
        title: The finding; default tells how much of the time the limits explain.
        ax: Where to draw.

    Raises:
        ResultError: Columns are missing or there are no ops.
    """
    require_columns(ops, OP_COLUMNS[:4], "op_shares")
    if not len(ops):
        raise ResultError("op_shares needs at least one op, got an empty table.", field="ops")
    steps = list(dict.fromkeys(names(ops, "step")))
    ax = new_axes(ax, (8.4, row_size(len(steps))[1] + 0.6))
    explained = [
        _draw_step(ax, row, ops.loc[ops["step"] == step]) for row, step in enumerate(steps)
    ]
    for op in dict.fromkeys(names(ops, "op")):
        ax.barh(0, 0, color=OP_COLORS[op], label=op)
    name_rows(ax, steps)
    ax.set_xlim(0, 100)
    ax.set_xlabel(
        "Share of the step (%)\nfull colour: least time by the machine's limits (more is better →)"
    )
    legend_beside(ax, "Op")
    low, high = min(explained), max(explained)
    set_title(ax, title or f"The limits explain {low:.0%} to {high:.0%} of a step's time")
    return ax


def _draw_step(ax: Axes, row: int, ops: pd.DataFrame) -> float:
    """Draw one bar and return the share of its time that the limits explain."""
    measured = np.clip(floats(ops, "measured_s"), 0, None)
    least = np.minimum(np.nan_to_num(floats(ops, "predicted_s")), measured)
    shares, full = measured / measured.sum() * 100, least / measured.sum() * 100
    left = 0.0
    for op, share, part in zip(names(ops, "op"), shares, full, strict=True):
        style = {"left": left, "height": _HEIGHT, "color": OP_COLORS[op]}
        ax.barh(row, share, alpha=_PALE, **style)
        ax.barh(row, part, **style)
        if share >= 100 * _MIN_LABEL_SHARE:
            ax.text(left + share / 2, row, f"{share:.0f}", ha="center", va="center", fontsize=8.5)
        left += share
    return float(full.sum() / 100)
