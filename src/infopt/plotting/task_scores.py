"""Scores in tasks by scheme, against the interval of the reference."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from infopt.errors import ResultError
from infopt.plotting.axes import label_axis, new_axes, set_title
from infopt.plotting.data import floats, names, usable_rows
from infopt.plotting.style import LIGHT_GREY, colors_for, markers_for, styled
from infopt.results.metrics import Metric
from infopt.results.table import require_columns

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes

_COLUMNS = ("score", "low", "high")
_ROW_IN = 0.2


@styled
def task_scores(
    scores: pd.DataFrame, reference: str, *, title: str | None = None, ax: Axes | None = None
) -> Axes:
    """Draw each scheme's score in each task; a band is the interval of the reference.

    Filled points lie below the band: they lost more than chance explains. All others are hollow.

    Args:
        scores: One row per task and scheme: ``task``, ``scheme``, ``score``, ``low``, ``high`` as
            shares of 1.
        reference: Scheme that the band is drawn for.
        title: The finding; default counts the schemes below the band per task.
        ax: Where to draw.

    Raises:
        ResultError: The reference has no scores.
    """
    table, _ = usable_rows(scores, _COLUMNS, "task_scores")
    require_columns(table, ["task", "scheme"], "task_scores")
    of_task, of_scheme = names(table, "task"), names(table, "scheme")
    if reference not in of_scheme:
        raise ResultError(
            f"task_scores: {reference!r} has no scores.", field="reference", value=reference
        )
    values = np.stack([floats(table, column) for column in _COLUMNS])
    tasks, schemes = list(dict.fromkeys(of_task)), list(dict.fromkeys(of_scheme))
    ax = new_axes(ax, (8.0, 1.4 + _ROW_IN * (len(schemes) + 1) * len(tasks)))
    ticks: dict[float, str] = {}
    below = dict.fromkeys(tasks, 0)
    for at, task in enumerate(tasks):
        first = at * (len(schemes) + 1.5)
        rows = np.flatnonzero([name == task for name in of_task])
        floor = _band(ax, table, rows, of_scheme, reference, (first, len(schemes)))
        ax.annotate(
            f"{task}", (0, first - 0.85), xycoords=("axes fraction", "data"), xytext=(2, 0),
            textcoords="offset points", fontsize=9, fontweight="bold", va="center",
        )  # fmt: skip
        for row in rows:
            place = first + schemes.index(of_scheme[row])
            ticks[place] = of_scheme[row]
            is_below = values[0, row] < floor
            below[task] += int(is_below)
            _point(ax, values[:, row], of_scheme[row], schemes, place, is_below=bool(is_below))
    ax.set_yticks(list(ticks), list(ticks.values()), fontsize=8)
    ax.set_ylim(max(ticks) + 0.8, -1.5)
    ax.grid(visible=False, axis="y")
    notes = ["band: 95 % interval of the reference; hollow: not below it"]
    label_axis(ax, "x", Metric("score", "Score", "%", "higher"), notes=notes)
    set_title(ax, title or _finding(below, len(schemes) - 1))
    return ax


def _band(
    ax: Axes,
    table: pd.DataFrame,
    rows: np.ndarray,
    of_scheme: list[str],
    reference: str,
    place: tuple[float, int],
) -> float:
    """Draw the reference's interval behind a task's rows and return its lower end."""
    own = [row for row in rows if of_scheme[row] == reference]
    if not own:
        return -np.inf
    low, high = (100 * float(floats(table, end)[own[0]]) for end in ("low", "high"))
    first, count = place
    ax.fill_betweenx(
        [first - 0.5, first + count - 0.5], low, high, color=LIGHT_GREY, alpha=0.45, linewidth=0
    )
    return low / 100


def _point(
    ax: Axes, values: np.ndarray, name: str, schemes: list[str], place: float, *, is_below: bool
) -> None:
    score, low, high = 100 * values
    color = colors_for(schemes)[name]
    ax.errorbar(
        score,
        place,
        xerr=np.clip([[score - low], [high - score]], 0, None),
        fmt=markers_for(schemes)[name],
        markersize=5,
        color=color,
        markerfacecolor=color if is_below else "white",
        elinewidth=1.0,
        capsize=2,
        zorder=3,
    )


def _finding(below: dict[str, int], num_others: int) -> str:
    parts = [f"{task} {count}" for task, count in below.items()]
    return f"Below the reference's interval, of {num_others} schemes: {', '.join(parts)}"
