"""Puts names beside points without covering points or each other."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patheffects import withStroke
from matplotlib.text import Text
from matplotlib.transforms import Bbox

from infopt.plotting.style import GREY

_DIRECTIONS = ((1, 0), (-1, 0), (0, 1), (0, -1), (1, 1), (-1, 1), (1, -1), (-1, -1))
_NEAR_PT = 8
_FAR_PT = (8, 18, 30, 44, 60)
_HALF_POINT_PT = 6.0


def place_labels(
    ax: Axes, points: np.ndarray, labels: Sequence[str], is_required: Sequence[bool]
) -> None:
    """Write a label beside each point; where there is no room, only if it is required.

    Call it last: it needs the final size of the axes.

    Args:
        ax: The axes, with everything else drawn.
        points: Data coordinates, shape (points, 2).
        labels: One per point; empty ones are skipped.
        is_required: Whether a label may cover something rather than be left out.
    """
    figure = ax.get_figure(root=True)
    assert isinstance(figure, Figure)
    figure.draw_without_rendering()
    pixels_per_pt = figure.dpi / 72
    pixels = ax.transData.transform(points)
    half = _HALF_POINT_PT * pixels_per_pt
    taken = [Bbox([[x - half, y - half], [x + half, y + half]]) for x, y in pixels]
    inside = ax.get_window_extent()
    for i in sorted(range(len(labels)), key=lambda i: not is_required[i]):
        if labels[i]:
            box = _place(ax, points[i], labels[i], taken, inside, is_required=is_required[i])
            taken += [box] if box is not None else []


def _place(
    ax: Axes,
    point: np.ndarray,
    label: str,
    taken: Sequence[Bbox],
    inside: Bbox,
    *,
    is_required: bool,
) -> Bbox | None:
    """Try the places around a point, nearest first; return the box of the label."""
    text = ax.annotate(
        label, tuple(point), xytext=(0, 0), textcoords="offset points", fontsize=8, zorder=5
    )
    places = [(d, r) for r in (_FAR_PT if is_required else (_NEAR_PT,)) for d in _DIRECTIONS]
    boxes = []
    for direction, distance in places:
        _move(text, direction, distance)
        boxes.append(text.get_window_extent())
    costs = [_cost(box, taken, inside) for box in boxes]
    best = int(np.argmin(costs))
    text.remove()
    if costs[best] > 0 and not is_required:
        return None
    _write(ax, point, label, *places[best])
    return boxes[best]


def _write(
    ax: Axes, point: np.ndarray, label: str, direction: tuple[int, int], distance: float
) -> None:
    """Write a label, with a line to its point where it is not right beside it."""
    line = {"arrowstyle": "-", "color": GREY, "lw": 0.7, "shrinkB": 4}
    text = ax.annotate(
        label,
        tuple(point),
        xytext=(0, 0),
        textcoords="offset points",
        fontsize=8,
        zorder=5,
        arrowprops=line if distance > _NEAR_PT else None,
        # Keeps letters readable where they cross a line
        path_effects=[withStroke(linewidth=2.5, foreground="white")],
    )
    _move(text, direction, distance)


def _move(text: Text, direction: tuple[int, int], distance: float) -> None:
    dx, dy = direction
    text.set_position((dx * distance, dy * distance))
    text.set_horizontalalignment(("center", "left", "right")[dx])
    text.set_verticalalignment(("center", "bottom", "top")[dy])


def _cost(box: Bbox, taken: Sequence[Bbox], inside: Bbox) -> float:
    """Return the covered area in square pixels, 0 for a free place inside the axes."""
    area = 0.0
    for other in taken:
        common = Bbox.intersection(box, other)
        area += common.width * common.height if common is not None else 0.0
    within = Bbox.intersection(box, inside)
    covered = within.width * within.height if within is not None else 0.0
    return area + 10 * max(box.width * box.height - covered, 0.0)
