"""What engine steps spend their time and pages on (tables made of ``StepStats``)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from infopt.errors import ResultError
from infopt.plotting.axes import legend_beside, new_axes, reference_line, set_title
from infopt.plotting.bars import name_rows, row_size
from infopt.plotting.data import floats, names
from infopt.plotting.style import BLUE, GREEN, LIGHT_GREY, ORANGE, colors_for, styled
from infopt.results.table import require_columns

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes

_PARTS = {"schedule": ORANGE, "forward": BLUE, "sample": GREEN, "other": LIGHT_GREY}
_MIN_LABEL_SHARE = 0.08


@styled
def step_breakdown(
    steps: pd.DataFrame,
    *,
    group: str | None = None,
    title: str | None = None,
    ax: Axes | None = None,
) -> Axes:
    """Draw the mean time of a step by what it was spent on.

    Args:
        steps: One row per step with the fields of ``StepStats``.
        group: Column that makes the bars; default tells prefill, mixed and decode steps apart.
        title: The finding; default tells the share of the model's forward pass.
        ax: Where to draw.

    Raises:
        ResultError: Columns are missing or there are no steps.
    """
    columns = ["duration_s", "schedule_s", "forward_s", "sample_s"]
    _check(steps, columns, "step_breakdown")
    groups = names(steps, group) if group else _kinds(steps)
    order = list(dict.fromkeys(groups)) if group else sorted(set(groups), key=_KIND_ORDER.index)
    masks = {name: np.array([g == name for g in groups]) for name in order}
    parts = _part_means_ms(steps, [masks[name] for name in order])
    ax = new_axes(ax, row_size(len(order)))
    left, totals = np.zeros(len(order)), sum(parts.values())
    assert isinstance(totals, np.ndarray)
    for name, values in parts.items():
        bars = ax.barh(np.arange(len(order)), values, left=left, height=0.62, color=_PARTS[name],
                       label=name)  # fmt: skip
        shares = values / totals
        dark = name == "forward"
        ax.bar_label(
            bars,
            [f"{s:.0%}" if s >= _MIN_LABEL_SHARE else "" for s in shares],
            label_type="center",
            fontsize=8.5,
            color="white" if dark else "black",
        )
        left = left + values
    name_rows(ax, [f"{name} (n={int(masks[name].sum())})" for name in order])
    ax.set_xlabel("Mean time of a step (ms)   ← better")
    legend_beside(ax)
    spent = floats(steps, "forward_s").sum() / floats(steps, "duration_s").sum()
    set_title(ax, title or f"The forward pass takes {spent:.0%} of all step time")
    return ax


@styled
def fragmentation(
    steps: pd.DataFrame,
    block_size: int,
    *,
    group: str | None = None,
    limit: float = 0.04,
    title: str | None = None,
    ax: Axes | None = None,
) -> Axes:
    """Draw the share of page slots that hold no token, over time.

    Args:
        steps: One row per step with the fields of ``StepStats``.
        block_size: Tokens per page.
        group: Column that makes the lines.
        limit: Share to draw a line at (0.04).
        title: The finding; default gives the mean share.
        ax: Where to draw.

    Raises:
        ResultError: Columns are missing, or no step used a page.
    """
    _check(steps, ["start_s", "num_pages_used", "num_tokens_in_pages"], "fragmentation")
    slots = floats(steps, "num_pages_used") * block_size
    used = slots > 0
    if not used.any():
        raise ResultError("fragmentation: no step used a page.", field="num_pages_used", value=0)
    tokens, times = floats(steps, "num_tokens_in_pages"), floats(steps, "start_s")
    groups = np.array(names(steps, group))
    ax = new_axes(ax)
    colors = colors_for(groups) | {"": BLUE}
    means = {}
    for name in dict.fromkeys(groups):
        rows = used & (groups == name)
        if not rows.any():
            continue
        means[name] = 1 - tokens[rows].sum() / slots[rows].sum()
        waste = (1 - tokens[rows] / slots[rows]) * 100
        text = f"{name}, mean {means[name]:.1%}" if name else f"mean {means[name]:.1%}"
        seconds = times[rows] - times[rows].min()
        ax.plot(seconds, waste, color=colors[name], linewidth=1.4, label=text)
    reference_line(ax, limit * 100, f"{limit:.0%}", axis="y")
    ax.set_ylim(bottom=0)
    ax.set_xlim(left=0)
    ax.set_xlabel("Time since the first step (s)")
    ax.set_ylabel("Slots in used pages without a token (%)   ← better", fontsize=9)
    legend_beside(ax)
    set_title(ax, title or _waste(means, block_size))
    return ax


_KIND_ORDER = ["prefill", "mixed", "decode"]


def _kinds(steps: pd.DataFrame) -> list[str]:
    require_columns(steps, ["num_prefill_tokens", "num_decode_tokens"], "step_breakdown")
    prefill, decode = floats(steps, "num_prefill_tokens"), floats(steps, "num_decode_tokens")
    return [
        "mixed" if p > 0 and d > 0 else "prefill" if p > 0 else "decode"
        for p, d in zip(prefill, decode, strict=True)
    ]


def _part_means_ms(steps: pd.DataFrame, masks: list[np.ndarray]) -> dict[str, np.ndarray]:
    """Return mean milliseconds by part, each of shape (groups,)."""
    duration = floats(steps, "duration_s")
    parts = {name: floats(steps, f"{name}_s") for name in ("schedule", "forward", "sample")}
    parts["other"] = np.clip(duration - sum(parts.values()), 0, None)
    return {
        name: np.array([values[mask].mean() for mask in masks]) * 1e3
        for name, values in parts.items()
    }


def _waste(means: dict[str, float], block_size: int) -> str:
    worst = max(means, key=lambda name: means[name])
    if len(means) == 1:
        return f"Pages of {block_size} tokens waste {means[worst]:.1%} of their slots"
    best = min(means, key=lambda name: means[name])
    return f"Wasted slots: {means[best]:.1%} ({best}) to {means[worst]:.1%} ({worst})"


def _check(steps: pd.DataFrame, columns: list[str], what: str) -> None:
    require_columns(steps, columns, what)
    if steps.empty:
        raise ResultError(f"{what}: there are no steps.", field=columns[0], value=0)
