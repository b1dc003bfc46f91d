"""Which parts of a model suffer most from fewer bits."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from infopt.errors import ResultError
from infopt.plotting.axes import label_axis, legend_beside, new_axes, set_title
from infopt.plotting.data import floats, names, usable_rows
from infopt.plotting.style import BLUE, ORANGE, PURPLE, VERMILION, colors_for, markers_for, styled
from infopt.results.html import format_value
from infopt.results.metrics import Metric
from infopt.results.table import require_columns

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes

_PARTS = {"attention": BLUE, "mlp": ORANGE, "embedding": PURPLE, "head": VERMILION}
_NAMES = {
    "attention": "attention",
    "mlp": "MLP",
    "embedding": "embedding",
    "head": "output head",
}
_GAP = 2.5  # of a bar group, between the layers and what is outside them


@styled
def sensitivity_bars(
    parts: pd.DataFrame, *, title: str | None = None, ax: Axes | None = None
) -> Axes:
    """Draw what few bits in one part alone do to the answers: bars per layer, the rest apart.

    Args:
        parts: One row per part: ``layer`` (NaN outside the layers), ``part`` (``attention``,
            ``mlp``, ``embedding``, ``head``) and ``kl`` in nats per token.
        title: The finding; default names the most sensitive part.
        ax: Where to draw.

    Raises:
        ResultError: A part of another kind.
    """
    table, _ = usable_rows(parts, ["kl"], "sensitivity_bars")
    require_columns(table, ["layer", "part"], "sensitivity_bars")
    kinds, layers, kl = names(table, "part"), floats(table, "layer"), floats(table, "kl")
    unknown = sorted(set(kinds) - set(_PARTS))
    if unknown:
        raise ResultError(
            f"sensitivity_bars knows no part {unknown[0]!r}.",
            field="part",
            value=unknown[0],
            remedy=f"Parts: {', '.join(_PARTS)}.",
        )
    outside = {
        "head": float(np.nanmax(layers, initial=-1.0)) + _GAP + 0.5,
        "embedding": -_GAP - 0.5,
    }
    ax = new_axes(ax, (9.0, 4.4))
    for kind, shift in (("attention", -0.21), ("mlp", 0.21), ("embedding", 0.0), ("head", 0.0)):
        rows = np.array([k == kind for k in kinds])
        if rows.any():
            x = layers[rows] + shift if kind not in outside else outside[kind]
            width = 0.7 if kind in outside else 0.4
            ax.bar(x, kl[rows], width=width, color=_PARTS[kind], label=_NAMES[kind])
    _name_layers(ax, layers, {name: x for name, x in outside.items() if name in kinds})
    ax.set_xlabel("Layer")
    label_axis(ax, "y", Metric("kl", "KL, this part alone in few bits", "nats", "lower"))
    legend_beside(ax)
    set_title(ax, title or _most(kinds, layers, kl))
    return ax


@styled
def layer_errors(df: pd.DataFrame, *, title: str | None = None, ax: Axes | None = None) -> Axes:
    """Draw the output error of the linear layers of each block, one line per scheme.

    Args:
        df: One row per linear layer: ``scheme``, ``block`` and ``relative_error`` (root of error
            power over output power). The line is the mean of a block, points are its layers.
        title: The finding; default names the scheme with the smallest mean error.
        ax: Where to draw.
    """
    table, _ = usable_rows(df, ["block", "relative_error"], "layer_errors")
    require_columns(table, ["scheme"], "layer_errors")
    of_row = names(table, "scheme")
    schemes = list(dict.fromkeys(of_row))
    colors, markers = colors_for(schemes), markers_for(schemes)
    ax = new_axes(ax, (8.6, 4.2))
    means = {}
    for name in schemes:
        own = table.loc[[other == name for other in of_row]]
        x, y = floats(own, "block"), floats(own, "relative_error") * 100
        blocks = np.unique(x)
        mean = np.array([y[x == block].mean() for block in blocks])
        means[name] = float(mean.mean())
        ax.plot(x, y, linestyle="none", marker=".", markersize=4, color=colors[name], alpha=0.35)
        ax.plot(blocks, mean, color=colors[name], marker=markers[name], markersize=4, label=name)
    ax.set_yscale("log")
    ax.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
    ax.set_xlabel("Layer\nline: mean of its products, points: the products")
    metric = Metric("relative_error", "Output error on calibration text", "%", "lower")
    label_axis(ax, "y", metric)
    legend_beside(ax)
    best = min(means, key=lambda name: means[name])
    found = f"{best} has the smallest error: {means[best]:.2g} % of the output on average"
    set_title(ax, title or found)
    return ax


def _name_layers(ax: Axes, layers: np.ndarray, outside: Mapping[str, float]) -> None:
    last = int(np.nanmax(layers, initial=-1.0))
    step = max(1, (last + 1) // 12)
    ticks = [float(i) for i in range(0, last + 1, step)]
    ticklabels = [str(int(tick)) for tick in ticks]
    ticks, ticklabels = [*ticks, *outside.values()], [*ticklabels, *outside]
    ax.set_xticks(ticks, ticklabels)
    ax.grid(visible=False, axis="x")


def _most(kinds: list[str], layers: np.ndarray, kl: np.ndarray) -> str:
    worst = int(np.argmax(kl))
    where = _NAMES[kinds[worst]]
    if np.isfinite(layers[worst]):
        where += f" of layer {layers[worst]:.0f}"
    share = format_value(100 * float(kl[worst] / kl.sum()), 2) if kl.sum() else "0"
    return f"Most sensitive: {where}, {share}% of the KL of all parts"
