"""Instance sizes, cold starts, the energy of requests, and figures over request lengths."""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING, Any

import numpy as np

from infopt.plotting.axes import label_axis, legend_beside, new_axes, set_title
from infopt.plotting.data import floats, metric_in, names, read_values, usable_rows
from infopt.plotting.style import (
    BLUE,
    GREEN,
    GREY,
    ORANGE,
    PALETTE,
    colors_for,
    markers_for,
    styled,
)
from infopt.results.html import format_value
from infopt.results.metrics import Metric
from infopt.results.table import require_columns

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes

_THOUSAND = 1000  # requests: one alone costs too little for numbers that people read
_ENERGY, _RATE = "energy.j_per_token", "throughput.output_tokens_per_s"


@styled
def size_tradeoff(rows: pd.DataFrame, *, title: str, ax: Axes | None = None) -> Axes:
    """Draw energy per token over throughput, a point per instance size.

    Horizontal lines are 95 % intervals of throughput. Vertical ones are the range of a modelled
    energy over its constants: they move all points together, so they are no doubt about the order.

    Args:
        rows: Candidates of a slice with throughput and energy.
        title: The finding.
        ax: Where to draw.
    """
    table, note = usable_rows(rows, [_ENERGY, _RATE], "size_tradeoff")
    rate, energy = read_values(table, _RATE), floats(table, _ENERGY)
    labels = names(table, "extra.candidate")
    markers = markers_for(labels)
    ax = new_axes(ax, (7.4, 4.4))
    ends = [floats(table, f"{_ENERGY}_{end}") for end in ("low", "high") if _has(table, end)]
    for place, label in enumerate(labels):
        point = (rate.values[place], energy[place])
        color = PALETTE[place % len(PALETTE)]
        ax.errorbar(
            *point,
            xerr=rate.errors[:, [place]] if rate.has_intervals else None,
            yerr=[[point[1] - ends[0][place]], [ends[1][place] - point[1]]] if ends else None,
            fmt=markers[label],
            color=color,
            elinewidth=1.2,
            capsize=3,
            label=label,
        )
    ax.set_xlim(left=0)
    ax.set_ylim(bottom=0)
    label_axis(ax, "x", rate.metric, notes=[note])
    remark = "vertical: all constants low to all high" if ends else None
    label_axis(ax, "y", metric_in(table, _ENERGY), notes=[remark])
    legend_beside(ax)
    set_title(ax, title)
    return ax


def _has(table: pd.DataFrame, end: str) -> bool:
    column = f"{_ENERGY}_{end}"
    return column in table.columns and bool(np.isfinite(floats(table, column)).all())


@styled
def keep_warm_curves(
    starts: pd.DataFrame, *, title: str, is_derived: bool, ax: Axes | None = None
) -> Axes:
    """Draw the energy per request of waiting and of starting over the rate of requests.

    Args:
        starts: ``format``, ``start_j``, ``warm_watts`` (above 0), a row per weight format.
        title: The finding.
        is_derived: Whether the energies are modelled.
        ax: Where to draw.
    """
    require_columns(starts, ["format", "start_j", "warm_watts"], "keep_warm_curves")
    ax = new_axes(ax, (7.6, 4.4))
    energy, power = floats(starts, "start_j"), floats(starts, "warm_watts")
    even = power / energy
    rates = np.geomspace(even.min() / 30, even.max() * 30, 60)
    labels = names(starts, "format")
    colors = colors_for(labels)
    for place, label in enumerate(labels):
        color = colors[label]
        warm = power[place] / rates
        ax.plot(rates, np.full_like(rates, energy[place]), color=color, label=f"{label}: start")
        ax.plot(rates, warm, color=color, linestyle="--", label=f"{label}: keep warm")
        ax.plot(even[place], energy[place], "o", color=color)
    _plain_logarithms(ax)
    suffix = ", derived" if is_derived else ""
    label_axis(ax, "x", Metric("rate", "Requests", "1/s"), notes=["points: break-even"])
    label_axis(ax, "y", Metric("energy", f"Start or waiting{suffix}", "J/request", "lower"))
    legend_beside(ax)
    set_title(ax, title)
    return ax


def _plain_logarithms(ax: Axes) -> None:
    """Make both axes logarithmic, with numbers that need no exponent."""
    ax.set_xscale("log")
    ax.set_yscale("log")
    ax.xaxis.set_major_formatter(lambda value, _: format_value(value, 3))
    ax.yaxis.set_major_formatter(lambda value, _: format_value(value, 3))


@styled
def request_energy(
    requests: pd.DataFrame, *, title: str, is_derived: bool, ax: Axes | None = None
) -> Axes:
    """Draw what requests used for their prompts and outputs, a bar for each pair of lengths.

    Args:
        requests: ``prompt_tokens``, ``output_tokens``, ``prefill_j``, ``decode_j`` of each.
        title: The finding.
        is_derived: Whether the energies are modelled.
        ax: Where to draw.
    """
    columns = ["prompt_tokens", "output_tokens", "prefill_j", "decode_j"]
    require_columns(requests, columns, "request_energy")
    means: Any = requests.groupby(columns[:2], as_index=False, sort=True)[columns[2:]].mean()
    prefill, decode = floats(means, "prefill_j"), floats(means, "decode_j")
    order = np.argsort(prefill + decode)
    places = np.arange(len(order))
    ax = new_axes(ax, (7.6, 4.0))
    width = min(0.8, 0.12 * len(order))  # a single bar need not fill the picture
    ax.bar(places, prefill[order], width=width, color=BLUE, label="prompt (prefill)")
    style = {"width": width, "color": ORANGE, "label": "output (decode)"}
    ax.bar(places, decode[order], bottom=prefill[order], **style)
    lengths = zip(*(floats(means, c) for c in ("prompt_tokens", "output_tokens")), strict=True)
    texts = [f"{p:.0f}+{o:.0f}" for p, o in lengths]
    step = max(len(order) // 12, 1)
    shown = places[::step]
    ax.set_xticks(shown, [texts[order[i]] for i in shown], rotation=45, fontsize=8)
    ax.set_xlim(-0.8, len(order) - 0.2)
    ax.grid(visible=False, axis="x")
    ax.set_xlabel(
        "Prompt + output tokens of the requests, by energy\nmeans where lengths are equal"
    )
    suffix = ", derived" if is_derived else ""
    label_axis(ax, "y", Metric("energy", f"Energy{suffix}", "J/request", "lower"))
    legend_beside(ax)
    set_title(ax, title)
    return ax


@styled
def lengths_map(
    points: pd.DataFrame,
    value: str,
    *,
    label: str,
    title: str,
    missing: str = "never",
    ax: Axes | None = None,
) -> Axes:
    """Draw a figure over prompt and output lengths as a table of colours with its numbers.

    Args:
        points: ``num_input``, ``num_output`` and the figure, for every combination.
        value: Column of the figure; a missing one is written as ``missing``.
        label: What it is, with its unit.
        title: The finding.
        missing: Word for points without a value.
        ax: Where to draw.
    """
    require_columns(points, ["num_input", "num_output", value], "lengths_map")
    inputs, outputs = (sorted(set(floats(points, n))) for n in ("num_input", "num_output"))
    grid = np.full((len(outputs), len(inputs)), np.nan)
    rows = zip(*(floats(points, n) for n in ("num_input", "num_output", value)), strict=True)
    for num_input, num_output, number in rows:
        grid[outputs.index(num_output), inputs.index(num_input)] = number
    ax = new_axes(ax, (1.6 + 1.0 * len(inputs), 1.4 + 0.55 * len(outputs)))
    shade = np.log10(np.where(np.isfinite(grid) & (grid > 0), grid, np.nan))
    ax.imshow(shade, cmap="Blues", aspect="auto", origin="lower", alpha=0.75)
    for row, column in np.ndindex(grid.shape):
        number = grid[row, column]
        text = format_value(float(number), 2) if np.isfinite(number) else missing
        ax.annotate(text, (column, row), ha="center", va="center", fontsize=9)
    ax.set_xticks(range(len(inputs)), [f"{n:.0f}" for n in inputs])
    ax.set_yticks(range(len(outputs)), [f"{n:.0f}" for n in outputs])
    ax.grid(visible=False)
    note = textwrap.fill(f"{label}; lighter is less (← better)", 11 * len(inputs))
    ax.set_xlabel(f"Prompt tokens\n{note}")
    ax.set_ylabel("Output tokens")
    set_title(ax, title)
    return ax


@styled
def cost_curves(points: pd.DataFrame, *, currency: str, title: str, ax: Axes | None = None) -> Axes:
    """Draw the price of 1000 requests over the traffic, on machines of one's own and elsewhere.

    Args:
        points: ``elsewhere`` (its name), ``requests_per_s``, ``own_per_request``,
            ``elsewhere_per_request``.
        currency: ISO code.
        title: The finding.
        ax: Where to draw.
    """
    columns = ["elsewhere", "requests_per_s", "own_per_request", "elsewhere_per_request"]
    require_columns(points, columns, "cost_curves")
    ax = new_axes(ax, (7.6, 4.2))
    kinds = list(dict.fromkeys(names(points, "elsewhere")))
    own = points.loc[points["elsewhere"] == kinds[0]]
    price = _THOUSAND * floats(own, "own_per_request")
    ax.plot(floats(own, "requests_per_s"), price, color=GREEN, label="own")
    for place, kind in enumerate(kinds):
        part = points.loc[points["elsewhere"] == kind]
        color = PALETTE[(place + 3) % len(PALETTE)]
        price = _THOUSAND * floats(part, "elsewhere_per_request")
        ax.plot(floats(part, "requests_per_s"), price, color=color, linestyle="--", label=kind)
    _plain_logarithms(ax)
    label_axis(ax, "x", Metric("traffic", "Requests", "1/s"))
    label_axis(ax, "y", Metric("cost", "Price", f"{currency}/1000 requests", "lower"))
    legend_beside(ax)
    set_title(ax, title)
    return ax


@styled
def written(text: str, *, title: str, ax: Axes | None = None) -> Axes:
    """Draw a sentence where there is nothing to draw: why something was not measured.

    Args:
        text: The reason.
        title: What was not measured.
        ax: Where to draw.
    """
    ax = new_axes(ax, (7.0, 1.8))
    ax.set_axis_off()
    ax.annotate(textwrap.fill(text, 90), (0.0, 0.9), xycoords="axes fraction", va="top", color=GREY)
    set_title(ax, title)
    return ax
