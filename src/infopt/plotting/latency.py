"""Latencies: percentiles per run, and whole distributions."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from infopt.errors import ResultError
from infopt.plotting.axes import label_axis, legend_beside, new_axes, reference_line, set_title
from infopt.plotting.bars import name_rows, row_size
from infopt.plotting.data import floats, names, shown, usable_rows
from infopt.plotting.style import GREY, LIGHT_GREY, colors_for, row_colors, styled
from infopt.results.metrics import metric_of
from infopt.results.table import require_columns

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes

PERCENTILES = ("p50", "p90", "p99")
_MARKERS = {"p50": "|", "p90": "o", "p99": "D"}


@styled
def latency_percentiles(
    df: pd.DataFrame,
    latency: str = "ttft_s",
    *,
    label: str = "slug",
    color: str | None = None,
    limit_s: float | None = None,
    title: str | None = None,
    ax: Axes | None = None,
) -> Axes:
    """Draw p50, p90 and p99 of one latency, one row per run.

    A percentile that the sample was too small for is missing, and the axis says so.

    Args:
        df: From ``load_results``.
        latency: ``ttft_s``, ``tpot_s``, ``itl_s``, ``e2e_s`` or ``queue_s``.
        label: Column with the names of rows.
        color: Column whose values have colours; default: techniques have theirs.
        limit_s: Limit of the service-level objective in seconds.
        title: The finding; default names the run with the lowest of the highest percentile that all
            runs have.
        ax: Where to draw.
    """
    table, note = usable_rows(df, [f"latency.{latency}.p50"], "latency_percentiles")
    metric, labels = metric_of(latency), names(table, label)
    values = {
        p: floats(table, column) * metric.display_scale
        for p in PERCENTILES
        if (column := f"latency.{latency}.{p}") in table.columns
    }
    ax = new_axes(ax, row_size(len(labels)))
    rows = np.arange(len(labels))
    colors = row_colors(labels, names(table, color) if color else None)
    spread = np.vstack(list(values.values()))
    ax.hlines(rows, np.nanmin(spread, axis=0), np.nanmax(spread, axis=0), color=LIGHT_GREY, lw=3)
    for percentile, points in values.items():
        if np.isfinite(points).any():
            _draw_marks(ax, points, rows, colors, percentile)
    if limit_s is not None:
        scaled = limit_s * metric.display_scale
        reference_line(ax, scaled, f"limit {shown(scaled, metric)}")
    name_rows(ax, labels)
    ax.set_xlim(left=0)
    missing = [p for p, v in values.items() if not np.isfinite(v).all()]
    reason = f"{', '.join(missing)} missing where the sample is too small" if missing else None
    label_axis(ax, "x", metric, notes=[note, reason])
    _percentile_legend(ax, [p for p, points in values.items() if np.isfinite(points).any()])
    set_title(ax, title or _lowest(values, labels, latency))
    return ax


@styled
def ecdf(
    samples: pd.DataFrame,
    *,
    value: str = "value",
    group: str = "run",
    latency: str = "ttft_s",
    limit: float | None = None,
    title: str | None = None,
    ax: Axes | None = None,
) -> Axes:
    """Draw which share of the samples is at or below a value.

    Samples without a value (requests that never had a first token) count as infinitely late: they
    stay in the total, so that a run which drops requests does not look fast.

    Args:
        samples: Long table (``load_samples`` filtered to one name).
        value: Column with the samples, in stored units.
        group: Column that tells the runs apart.
        latency: What the samples are, for label and unit.
        limit: Limit in stored units, drawn as a line.
        title: The finding; default gives the shares within the limit, or the medians.
        ax: Where to draw.

    Raises:
        ResultError: Columns are missing or there are no samples.
    """
    require_columns(samples, [value, group], "ecdf")
    if samples.empty:
        raise ResultError("ecdf: there are no samples.", field=value, value=0)
    metric, groups = metric_of(latency), names(samples, group)
    numbers = floats(samples, value) * metric.display_scale
    ax = new_axes(ax)
    order = list(dict.fromkeys(groups))
    by_group = {name: numbers[np.array([g == name for g in groups])] for name in order}
    colors = colors_for(order)
    for name, own in by_group.items():
        _draw_steps(ax, own, colors[name], name)
    scaled = None if limit is None else limit * metric.display_scale
    for percent in (50, 90, 99):
        ax.axhline(percent, color=LIGHT_GREY, linewidth=1, linestyle=":", zorder=1)
    if scaled is not None:
        reference_line(ax, scaled, f"limit {shown(scaled, metric)}")
    ax.set_yticks([0, 25, 50, 75, 90, 99], ["0", "25", "50", "75", "90", "99"])
    ax.set_ylim(0, 101)
    ax.set_xlim(left=0)
    label_axis(ax, "x", metric)
    ax.set_ylabel("Share of requests at or below (%)")
    legend_beside(ax)
    set_title(ax, title or _shares(by_group, latency, scaled))
    return ax


def _draw_steps(ax: Axes, samples: np.ndarray, color: str, name: str) -> None:
    """Draw one curve; missing samples count in the total, so that it ends below 100 %."""
    present = np.sort(samples[np.isfinite(samples)])
    share = np.arange(1, len(present) + 1) / len(samples) * 100
    num_missing = len(samples) - len(present)
    missing = f", {num_missing} without a value" if num_missing else ""
    ax.step(
        np.concatenate([[0], present]),
        np.concatenate([[0], share]),
        where="post",
        color=color,
        label=f"{name} (n={len(samples)}{missing})",
    )


def _draw_marks(
    ax: Axes, points: np.ndarray, rows: np.ndarray, colors: list[str], percentile: str
) -> None:
    thick = 3 if _MARKERS[percentile] == "|" else 1
    size = 190 if _MARKERS[percentile] == "|" else 48
    ax.scatter(points, rows, s=size, c=colors, marker=_MARKERS[percentile], lw=thick, zorder=3)


def _percentile_legend(ax: Axes, drawn: list[str]) -> None:
    """Explain the marks in grey: colour belongs to the runs."""
    from matplotlib.lines import Line2D

    handles = [
        Line2D([], [], color=GREY, marker=mark, linestyle="none", markersize=8, markeredgewidth=2
               if mark == "|" else 1, label=percentile)
        for percentile, mark in _MARKERS.items() if percentile in drawn
    ]  # fmt: skip
    ax.legend(handles=handles, loc="upper left", bbox_to_anchor=(1.01, 1), borderaxespad=0)


def _lowest(values: dict[str, np.ndarray], labels: list[str], latency: str) -> str:
    # The rare long waits are what users remember.
    key = next(p for p in reversed(values) if np.isfinite(values[p]).all())
    metric, best = metric_of(latency), int(np.nanargmin(values[key]))
    text = f"{labels[best]} has the lowest {metric.label} {key}: "
    return text + shown(float(values[key][best]), metric)


def _shares(by_group: dict[str, np.ndarray], latency: str, limit: float | None) -> str:
    metric = metric_of(latency)
    if limit is None:
        medians = {n: float(np.median(np.nan_to_num(v, nan=np.inf))) for n, v in by_group.items()}
        parts = [
            f"{n} {shown(m, metric) if np.isfinite(m) else 'none'}" for n, m in medians.items()
        ]
        return f"Median {metric.label}: {', '.join(parts)}"
    shares = [f"{name} {np.mean(v <= limit) * 100:.0f} %" for name, v in by_group.items()]
    return f"Within {shown(limit, metric)}: {', '.join(shares)}"
