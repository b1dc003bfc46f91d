"""Points with intervals whose marks say better, worse or undecided; for plots with rows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from infopt.plotting.style import GREEN, GREY, VERMILION

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Values = NDArray[np.float64]

NOTE = "up: better; down: worse; hollow: undecided"
"""What an axis says about the marks."""

_VERDICTS = {"better": (GREEN, "^"), "worse": (VERMILION, "v"), "undecided": (GREY, "o")}


def verdict_dots(
    ax: Axes,
    labels: Sequence[str],
    verdicts: Sequence[str],
    values: Values,
    low: Values,
    high: Values,
) -> str:
    """Draw one row per value and return the verdicts counted, as words.

    Args:
        ax: Where to draw.
        labels: Names of the rows, from the top.
        verdicts: ``better``, ``worse`` or ``undecided``.
        values: In displayed units, shape (num_rows,).
        low: Lower ends of their intervals.
        high: Upper ends.
    """
    for place, verdict in enumerate(verdicts):
        color, marker = _VERDICTS[verdict]
        ax.errorbar(
            values[place],
            place,
            xerr=np.clip([[values[place] - low[place]], [high[place] - values[place]]], 0, None),
            fmt=marker,
            color=color,
            markerfacecolor="white" if verdict == "undecided" else color,
            elinewidth=1.3,
            capsize=3,
        )
    ax.set_yticks(range(len(labels)), labels)
    ax.set_ylim(len(labels) - 0.5, -0.5)
    counts = {verdict: list(verdicts).count(verdict) for verdict in _VERDICTS}
    return ", ".join(f"{count} {verdict}" for verdict, count in counts.items() if count)
