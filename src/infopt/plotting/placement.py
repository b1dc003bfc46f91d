"""Puts names beside points without covering points or each other."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.transforms import Bbox

_DIRECTIONS = ((1, 0), (-1, 0), (0, 1), (0, -1), (1, 1), (-1, 1), (1, -1), (-1, -1))
_DISTANCES_PT = (8, 16, 26)
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
    """Try all places around a point, nearest first; return the box of the label."""
    text = ax.annotate(label, tuple(point), textcoords="offset points", fontsize=8, zorder=5)
    best: tuple[float, tuple[int, int]] | None = None
    for distance in _DISTANCES_PT:
        for direction in _DIRECTIONS:
            _move(text, direction, distance)
            cost = _cost(text.get_window_extent(), taken, inside)
            if best is None or cost < best[0]:
                best = cost, (direction[0] * distance, direction[1] * distance)
            if cost == 0:
                return text.get_window_extent()
    if not is_required or best is None:
        text.remove()
        return None
    dx, dy = best[1]
    _move(text, (int(np.sign(dx)), int(np.sign(dy))), max(abs(dx), abs(dy)))
    return text.get_window_extent()


def _move(text, direction: tuple[int, int], distance: float) -> None:
    dx, dy = direction
    text.set_position((dx * distance, dy * distance))
    text.set_horizontalalignment({1: "left", -1: "right", 0: "center"}[dx])
    text.set_verticalalignment({1: "bottom", -1: "top", 0: "center"}[dy])


def _cost(box: Bbox, taken: Sequence[Bbox], inside: Bbox) -> float:
    """Return the covered area in square pixels, 0 for a free place inside the axes."""
    area = 0.0
    for other in taken:
        common = Bbox.intersection(box, other)
        area += common.width * common.height if common is not None else 0.0
    within = Bbox.intersection(box, inside)
    covered = within.width * within.height if within is not None else 0.0
    return area + 10 * max(box.width * box.height - covered, 0.0)
