"""Writes plots as files that depend on the plot alone: same input, same bytes."""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import matplotlib as mpl
from matplotlib.axes import Axes

from infopt.errors import ResultError
from infopt.plotting.style import STYLE
from infopt.results.files import write_bytes_atomic

if TYPE_CHECKING:
    from matplotlib.figure import Figure, SubFigure

FORMATS = ("png", "svg")
_NUM_LAYOUT_PASSES = 4

# Dates and version strings would make every file new, and with it everything that depends on it.
_METADATA: dict[str, dict[str, Any]] = {
    "png": {"Software": None},
    "svg": {"Date": None, "Creator": None},
    "pdf": {"CreationDate": None, "Creator": None, "Producer": None},
}


def save(
    plot: Axes | Figure | SubFigure,
    stem: str | Path,
    *,
    formats: Sequence[str] = FORMATS,
    dpi: int = 150,
) -> list[Path]:
    """Write a plot in several formats.

    Args:
        plot: Axes from a plotting function, or a figure.
        stem: Path without ending; ``fig/front`` gives ``fig/front.png`` and ``fig/front.svg``.
        formats: Of png, svg and pdf.
        dpi: Resolution of png.

    Returns:
        The files.

    Raises:
        ResultError: Another format.
    """
    unknown = [name for name in formats if name not in _METADATA]
    if unknown:
        raise ResultError(
            f"Plots are not written as {unknown[0]!r}.",
            field="formats",
            value=unknown[0],
            remedy=f"Choose from: {', '.join(_METADATA)}.",
        )
    figure = plot.get_figure(root=True) if isinstance(plot, Axes) else plot
    assert figure is not None
    with _settled_layout(figure):
        return [_write(figure, Path(f"{stem}.{name}"), name, dpi) for name in formats]


@contextmanager
def _settled_layout(figure: Any) -> Iterator[None]:
    """Fix the places of all axes while a figure is written.

    Constrained layout moves axes by less and less with each drawing. Without this the bytes would
    depend on how often a figure had been drawn before, and with which resolution.
    """
    for _ in range(_NUM_LAYOUT_PASSES):
        figure.draw_without_rendering()
    places = [(ax, ax.get_position(original=True)) for ax in figure.axes]
    engine = figure.get_layout_engine()
    figure.set_layout_engine("none")
    for ax, place in places:
        ax.set_position([round(value, 4) for value in place.bounds])
    try:
        yield
    finally:
        for ax, place in places:
            ax.set_position(place)
            ax.set_in_layout(True)
        figure.set_layout_engine(engine)


def _write(figure: Any, path: Path, name: str, dpi: int) -> Path:
    buffer = io.BytesIO()
    settings: Any = dict(STYLE)
    with mpl.rc_context(settings):
        figure.savefig(buffer, format=name, dpi=dpi, metadata=_METADATA[name])
    return write_bytes_atomic(path, buffer.getvalue())
