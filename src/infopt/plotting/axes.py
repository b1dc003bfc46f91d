"""Axes that show themselves in a notebook, and the labels that every plot has."""

from __future__ import annotations

import io
import textwrap
from collections.abc import Sequence
from typing import Any, Literal

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from infopt.plotting.style import GREY
from infopt.results.metrics import Better, Metric, metric_of

_DISPLAY_DPI = 144
_MAX_TICKS = 9
_SLACK = 1.2  # how far beyond its ticks an axis may reach
_RATIO_TICKS = (
    tuple(step / 20 for step in range(10, 41)),
    tuple(step / 10 for step in range(3, 21)),
    (*(step / 10 for step in range(2, 10)), 1.0, 1.2, 1.4, 1.6, 1.8, 2.0, 2.5, 3.0, 3.5, 4.0),
    tuple(
        step * power
        for power in (0.01, 0.1, 1.0, 10.0, 100.0)
        for step in (1.0, 1.5, 2.0, 3.0, 5.0, 7.0)
    ),
    tuple(2.0**power for power in range(-10, 11)),
)
"""Ticks of an axis of ratios, the finest first."""
_NOTE_WIDTH = 48  # characters; narrow axes beside long names of rows have no more room


class PlotAxes(Axes):
    """Axes that Jupyter displays as a picture, whatever matplotlib backend is set (or none)."""

    name = "infopt"

    def _repr_png_(self) -> tuple[bytes, dict[str, int]]:
        figure = self.get_figure(root=True)
        assert isinstance(figure, Figure)
        buffer = io.BytesIO()
        figure.savefig(buffer, format="png", dpi=_DISPLAY_DPI, metadata={"Software": None})
        width, height = figure.get_size_inches()
        size = {"width": round(width * 96), "height": round(height * 96)}
        return buffer.getvalue(), size


def new_axes(ax: Axes | None, size: tuple[float, float] = (7.0, 4.2)) -> Axes:
    """Return the caller's axes, or new ones on a figure that no window system knows of.

    Args:
        ax: Where to draw; None makes a figure.
        size: Width and height of a new figure in inches.
    """
    if ax is not None:
        return ax
    # Figure, not pyplot.figure: pyplot may open a GUI, keeps figures alive, and is bound to the
    # main thread.
    figure = Figure(figsize=size, layout="constrained")
    FigureCanvasAgg(figure)
    return figure.add_subplot(axes_class=PlotAxes)


def set_title(ax: Axes, title: str) -> None:
    """Set the finding as title, wrapped to the room there is.

    On a figure of its own the title spans the whole width, beginning at the left edge: long names
    of rows would otherwise push it out of the picture.
    """
    figure = ax.get_figure(root=True)
    assert isinstance(figure, Figure)
    if isinstance(ax, PlotAxes):
        text = figure.suptitle(title, x=0.01, ha="left", fontsize=11, fontweight="bold")
        room = figure.bbox.width * 0.95  # letters are a little wider at other resolutions
    else:
        text = ax.set_title(title, pad=16)  # room for the name of a line
        figure.draw_without_rendering()  # names of rows make the axes narrower
        room = ax.get_window_extent().width
    text.set_parse_math(False)
    width = text.get_window_extent().width
    if width > room:
        num_chars = int(len(title) * room / width) - 1
        text.set_text(_balanced(title, max(num_chars, 16)))


def _balanced(text: str, num_chars: int) -> str:
    """Wrap a text into as few lines as possible, none much shorter than the others."""
    num_lines = len(textwrap.wrap(text, num_chars))
    widths = range(max(len(text) // num_lines, 1), num_chars + 1)
    width = next((w for w in widths if len(textwrap.wrap(text, w)) == num_lines), num_chars)
    return textwrap.fill(text, width)


def log_ratio_axis(ax: Axes, axis: Literal["x", "y"], low: float, high: float) -> None:
    """Scale an axis of ratios so that half and double are equally far, with round ticks.

    Args:
        ax: The axes.
        axis: Which axis.
        low: Its lower end, above 0.
        high: Its upper end.
    """
    reaching = [t for t in _RATIO_TICKS if t[0] <= _SLACK * low and high <= _SLACK * t[-1]]
    inside = [[tick for tick in ticks if low <= tick <= high] for ticks in reaching]
    ticks = next((t for t in inside if len(t) <= _MAX_TICKS), inside[-1] if inside else [1.0])
    texts = [f"{tick:g}x" for tick in ticks]
    if axis == "x":
        ax.set_xscale("log", base=2)
        ax.set_xticks(ticks, texts)
        ax.set_xlim(low, high)
    else:
        ax.set_yscale("log", base=2)
        ax.set_yticks(ticks, texts)
        ax.set_ylim(low, high)
    ax.minorticks_off()


def label_axis(
    ax: Axes,
    axis: Literal["x", "y"],
    column: str | Metric,
    *,
    notes: Sequence[str | None] = (),
) -> None:
    """Label an axis with name, unit and an arrow to the better side.

    Args:
        ax: The axes.
        axis: Which axis.
        column: Column of the results table, or its metric.
        notes: Remarks on lines of their own; None is none.
    """
    metric = column if isinstance(column, Metric) else metric_of(column)
    label = metric.axis_label + better_text(metric.better)
    label += "".join(f"\n{textwrap.fill(note, _NOTE_WIDTH)}" for note in notes if note)
    ax.set_xlabel(label) if axis == "x" else ax.set_ylabel(label)


def better_text(better: Better | None) -> str:
    """Return the arrow for an axis label; on a vertical axis it turns with the text."""
    return {"lower": "   ← better", "higher": "   better →", None: ""}[better]


def reference_line(
    ax: Axes, value: float, label: str | None = None, *, axis: Literal["x", "y"] = "x"
) -> None:
    """Draw the line of a reference or a limit, with its name along it.

    Args:
        ax: The axes.
        value: Where, in displayed units.
        label: Name of the line.
        axis: ``x`` draws a vertical line at an x value.
    """
    style: dict[str, Any] = {"color": GREY, "linewidth": 1.2, "linestyle": "--", "zorder": 1.5}
    if axis == "x":
        ax.axvline(value, **style)
        place: dict[str, Any] = {"xy": (value, 1), "xycoords": ax.get_xaxis_transform()}
        align = {"ha": "center", "va": "bottom", "xytext": (0, 1)}
    else:
        ax.axhline(value, **style)
        place = {"xy": (1, value), "xycoords": ax.get_yaxis_transform()}
        align = {"ha": "right", "va": "bottom", "xytext": (-2, 2)}
    if label:
        text: dict[str, Any] = {"textcoords": "offset points", "fontsize": 8, "color": GREY}
        ax.annotate(label, **place, **align, **text)


def legend_beside(ax: Axes, title: str | None = None) -> None:
    """Put the legend to the right of the axes, where it can hide nothing."""
    num_entries = len(ax.get_legend_handles_labels()[0])
    if num_entries > 0:
        _make_room(ax, num_entries + (title is not None))
        ax.legend(
            loc="upper left",
            bbox_to_anchor=(1.01, 1),
            borderaxespad=0,
            title=title,
            alignment="left",
        )


def _make_room(ax: Axes, num_lines: int) -> None:
    """Make a figure of our own high enough for its legend: layout would squeeze the axes else."""
    figure = ax.get_figure(root=True)
    if isinstance(ax, PlotAxes) and isinstance(figure, Figure):
        figure.set_figheight(max(figure.get_figheight(), 1.4 + 0.22 * num_lines))
