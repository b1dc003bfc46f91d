"""What the amount and the kind of calibration text do to quality."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from infopt.plotting.axes import label_axis, legend_beside, new_axes, reference_line, set_title
from infopt.plotting.bars import name_rows
from infopt.plotting.data import Values, names, read_values, usable_rows
from infopt.plotting.style import BLUE, ORANGE, styled
from infopt.results.metrics import Metric

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes

KINDS: Mapping[str, str] = {"docs": BLUE, "code": ORANGE}
"""Kinds of text that perplexity is measured on, and their colours."""

_MARKERS = {"docs": "o", "code": "s"}


@styled
def calibration_size(
    df: pd.DataFrame,
    *,
    tokens: str = "extra.calibration_tokens",
    baselines: Mapping[str, float] | None = None,
    title: str | None = None,
    ax: Axes | None = None,
) -> Axes:
    """Draw the perplexity ratio on each kind of text over the amount of calibration text.

    Args:
        df: From ``load_results``; one row per calibration.
        tokens: Column with the tokens that calibration ran through the model.
        baselines: Ratio without calibration by kind of text, drawn as a line.
        title: The finding; default compares the smallest and the largest amount.
        ax: Where to draw.
    """
    columns = [_column(kind) for kind in KINDS]
    table, note = usable_rows(df, [tokens, *columns], "calibration_size")
    table = table.sort_values(by=[tokens])
    x = read_values(table, tokens).values
    ax = new_axes(ax, (7.6, 4.2))
    for kind, color in KINDS.items():
        found = read_values(table, _column(kind))
        style = {"color": color, "capsize": 3, "elinewidth": 1.2}
        ax.errorbar(x, found.values, yerr=found.errors, marker=_MARKERS[kind], label=kind, **style)
        if baselines and kind in baselines:
            ax.axhline(
                baselines[kind],
                color=color,
                linestyle=":",
                linewidth=1.4,
                label=f"{kind}, uncalibrated",
            )
    ax.set_xscale("log", base=2)
    ax.set_xticks(x, [f"{value:g}" for value in x])
    ax.minorticks_off()
    ax.set_xlabel("\n".join(filter(None, ["Calibration text (tokens)", note])))
    label_axis(ax, "y", _RATIO)
    legend_beside(ax, "Perplexity on")
    set_title(ax, title or _growth(table, x))
    return ax


@styled
def text_ratios(
    df: pd.DataFrame,
    *,
    label: str = "slug",
    limit: float | None = None,
    title: str | None = None,
    ax: Axes | None = None,
) -> Axes:
    """Draw perplexity ratios on docs and on code, a row per run, with 95 % intervals.

    Args:
        df: From ``load_results``.
        label: Column with the names of rows.
        limit: Largest ratio allowed; None draws no line.
        title: The finding; default names the lowest run on each kind of text and says how many
            others its interval does not tell from it.
        ax: Where to draw.
    """
    table, note = usable_rows(df, [_column(kind) for kind in KINDS], "text_ratios")
    labels = names(table, label)
    found = {kind: read_values(table, _column(kind)) for kind in KINDS}
    ax = new_axes(ax, (7.8, 1.6 + 0.42 * max(len(labels), 2)))
    rows = np.arange(len(labels), dtype=float)
    for shift, (kind, color) in zip((-0.14, 0.14), KINDS.items(), strict=True):
        values = found[kind]
        ax.errorbar(
            values.values,
            rows + shift,
            xerr=values.errors,
            fmt=_MARKERS[kind],
            color=color,
            markersize=6,
            elinewidth=1.3,
            capsize=3,
            label=kind,
        )
    reference_line(ax, 1.0, "float")
    if limit is not None:
        reference_line(ax, limit, "floor")
    name_rows(ax, labels)
    _widen(ax, list(found.values()))
    label_axis(ax, "x", _RATIO, notes=[note])
    legend_beside(ax, "Perplexity on")
    set_title(ax, title or _best_of(found, labels))
    return ax


_RATIO = Metric("ratio", "Perplexity, ratio to float", better="lower")


def _column(kind: str) -> str:
    return f"quality.perplexity_ratio.{kind}.ratio"


def _widen(ax: Axes, values: Sequence[Values]) -> None:
    """Use a logarithmic axis where one run is far beyond the others."""
    ends = np.concatenate([part for v in values for part in (v.values, v.low, v.high)])
    if float(np.nanmax(ends)) > 2:
        ax.set_xscale("log")
        ax.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
        ax.xaxis.set_minor_formatter(lambda value, _: f"{value:g}" if value < 10 else "")


def _growth(table: pd.DataFrame, x: np.ndarray) -> str:
    parts = []
    for kind in KINDS:
        values = read_values(table, _column(kind)).values
        parts.append(f"{kind} {values[0]:.3f} to {values[-1]:.3f}")
    return f"From {x[0]:g} to {x[-1]:g} tokens of calibration text: {', '.join(parts)}"


def _best_of(found: Mapping[str, Values], labels: list[str]) -> str:
    """Name the lowest ratio of each kind of text, and how many overlap with its interval."""
    parts = []
    for kind, values in found.items():
        best = int(np.argmin(values.values))
        num_open = int((values.low <= values.high[best]).sum()) - 1
        doubt = f" ({num_open} not told from it)" if num_open > 0 else ""
        parts.append(f"lowest on {kind}: {labels[best]}{doubt}")
    return ", ".join(parts).capitalize()
