"""What fewer bits per weight cost in quality: one point per scheme."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
from matplotlib.ticker import NullLocator

from infopt.plotting.axes import label_axis, new_axes, reference_line, set_title
from infopt.plotting.data import Values, names, read_values, usable_rows
from infopt.plotting.placement import place_labels
from infopt.plotting.style import colors_for, markers_for, styled
from infopt.results.html import format_value
from infopt.results.metrics import Metric
from infopt.results.table import require_columns

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes

_RATIO = "quality.perplexity_ratio."
_POWERS = tuple(10.0**power for power in range(-3, 7))


@styled
def quality_bits(
    df: pd.DataFrame,
    value: str = "quality.kl_mean",
    *,
    bits: str = "extra.bits",
    label: str = "slug",
    stored: str = "extra.is_stored",
    dequantized: str = "extra.is_dequantized",
    limits: Mapping[str, float] | None = None,
    title: str | None = None,
    ax: Axes | None = None,
) -> Axes:
    """Draw a loss of quality over bits per weight, with 95 % intervals and the floors.

    Near 0 the vertical axis is linear, further up logarithmic: no loss at all has a place on it. A
    perplexity ratio is drawn as the per cent above (or below) the reference.

    Args:
        df: From ``load_results``.
        value: ``quality.kl_mean`` or a perplexity ratio.
        bits: Column with the bits per weight.
        label: Column with the names of points.
        stored: Column that is true where the model's file holds these very codes: hollow.
        dequantized: Column that is true where no kernel read the codes: marked with a dagger.
        limits: Largest values that are allowed, by name, in stored units.
        title: The finding; default names the scheme with the fewest bits below the first limit.
        ax: Where to draw.
    """
    table, note = usable_rows(df, [bits, value], "quality_bits")
    require_columns(table, [stored, dequantized], "quality_bits")
    loss, bare = _loss(table, value), names(table, label)
    x = read_values(table, bits).values
    is_stored, is_loose = (table[c].to_numpy(dtype=bool) for c in (stored, dequantized))
    shown = [f"{n} †" if loose else n for n, loose in zip(bare, is_loose, strict=True)]
    ax = new_axes(ax, (8.2, 4.8))
    _scale(ax, x, loss, _limits(limits, value))
    _draw_points(ax, x, loss, bare, is_stored)
    for name, limit in _limits(limits, value).items():
        reference_line(ax, limit, name, axis="y")
    notes = [
        "hollow: the model's file holds these codes" if is_stored.any() else None,
        "†: runs dequantized" if is_loose.any() else None,
        note,
    ]
    label_axis(ax, "x", Metric(bits, "Bits per weight, scales included", "bits"), notes=notes)
    label_axis(ax, "y", loss.metric)
    set_title(ax, title or _finding(bare, x, loss, _limits(limits, value)))
    place_labels(ax, np.column_stack([x, loss.values]), shown, [True] * len(shown))
    return ax


def _loss(table: pd.DataFrame, value: str) -> Values:
    """Return the column as a loss: 0 is the reference."""
    found = read_values(table, value)
    if not value.startswith(_RATIO):
        return found
    percent = replace(found.metric, label=f"{found.metric.label} above the reference")
    metric = replace(percent, display_unit="%")
    return Values(metric, *(100 * (v - 1) for v in (found.values, found.low, found.high)))


def _limits(limits: Mapping[str, float] | None, value: str) -> dict[str, float]:
    is_ratio = value.startswith(_RATIO)
    return {n: 100 * (v - 1) if is_ratio else v for n, v in (limits or {}).items()}


def _scale(ax: Axes, x: np.ndarray, loss: Values, limits: Mapping[str, float]) -> None:
    """Set both scales: doublings of bits, and decades of loss with a linear part around 0."""
    linear = 1.0 if loss.metric.display_unit == "%" else 1e-3
    ends = np.concatenate([loss.values, loss.low, loss.high, [*limits.values(), 0.0]])
    low, high = float(np.nanmin(ends)), float(np.nanmax(ends))
    ax.set_yscale("symlog", linthresh=linear, linscale=0.6)
    ax.set_ylim(min(1.6 * low, -0.5 * linear), max(2.5 * high, 2 * linear))
    decades = [power for power in _POWERS if power >= linear]
    _set_ticks(ax.yaxis, [*(-power for power in decades), 0.0, *decades])
    ax.set_xscale("log", base=2)
    ax.set_xlim(float(x.min()) / 1.25, float(x.max()) * 1.4)
    _set_ticks(ax.xaxis, (2, 3, 4, 5, 6, 8, 12, 16, 32))


def _set_ticks(axis: Any, ticks: Sequence[float]) -> None:
    low, high = sorted(axis.get_view_interval())
    inside = [tick for tick in ticks if low <= tick <= high]
    axis.set_ticks(inside, [format_value(tick, 3) for tick in inside])
    axis.set_minor_locator(NullLocator())


def _draw_points(
    ax: Axes, x: np.ndarray, loss: Values, labels: list[str], is_stored: np.ndarray
) -> None:
    colors, markers = colors_for(labels), markers_for(labels)
    for i, name in enumerate(labels):
        ax.errorbar(
            x[i],
            loss.values[i],
            yerr=loss.errors[:, i : i + 1],
            fmt=markers[name],
            color=colors[name],
            markerfacecolor="white" if is_stored[i] else colors[name],
            elinewidth=1.2,
            capsize=2,
            zorder=3,
        )


def _finding(labels: list[str], x: np.ndarray, loss: Values, limits: Mapping[str, float]) -> str:
    what = loss.metric.label
    if not limits:
        best = int(np.argmin(loss.values))
        return f"{what}: {labels[best]} loses least, with {x[best]:.3g} bits per weight"
    name, limit = next(iter(limits.items()))
    kept = np.flatnonzero(loss.values <= limit)
    if not len(kept):
        return f"{what}: nothing stays below the {name}"
    fewest = kept[np.lexsort((loss.values[kept], x[kept]))[0]]
    return f"{what}: {x[fewest]:.3g} bits are the fewest below the {name}, with {labels[fewest]}"
