"""The loss curve as a table and as a picture."""

from __future__ import annotations

import csv
import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from infopt.plotting.axes import new_axes, set_title
from infopt.plotting.saving import save
from infopt.plotting.style import BLACK, BLUE, GREY, ORANGE, styled
from infopt.training.recipes import LEARNED_SHARE

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from infopt.training.loop import CurvePoint

_ROW_STEPS = 10  # steps that are averaged into one row
_DPI = 100


def write_curve(points: Sequence[CurvePoint], folder: Path, name: str, bigram_loss: float) -> None:
    """Write ``loss.csv`` (a row for ten steps) and ``loss.png``.

    Args:
        points: One per step.
        folder: Where to.
        name: Of the model, for the title.
        bigram_loss: The bigram's loss on the held-out windows, in nats per token.
    """
    rows = _rows(points)
    with (folder / "loss.csv").open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["step", "tokens", "rate_factor", "loss", "heldout_loss"])
        writer.writerows(rows)
    save(plot_curve(points, name, bigram_loss), folder / "loss", formats=("png",), dpi=_DPI)


@styled
def plot_curve(points: Sequence[CurvePoint], name: str, bigram_loss: float) -> Axes:
    """Draw the loss over the tokens read, in nats per token, and the bigram's as a line."""
    ax = new_axes(None)
    losses = [(p.tokens / 1e6, p.heldout_loss) for p in points if p.heldout_loss is not None]
    tokens, final = losses[-1]
    target = bigram_loss + math.log(LEARNED_SHARE)
    batches = [p.loss for p in points]
    ax.plot([p.tokens / 1e6 for p in points], batches, color=GREY, linewidth=0.6, label="batches")
    ax.plot(*zip(*losses, strict=True), color=BLUE, marker="o", markersize=4, label="held-out text")
    ax.axhline(bigram_loss, color=ORANGE, linestyle="--", label="smoothed bigram, held-out text")
    below = f"{100 * (1 - LEARNED_SHARE):.0f} % below its perplexity"
    ax.axhline(target, color=BLACK, linestyle=":", label=below)
    ax.set_xlabel("Tokens read (millions)")
    ax.set_ylabel("Loss (nats per token, lower is better)")
    ax.set_ylim(min(final, target, *batches) - 0.2, max(bigram_loss, final) + 1.0)
    ax.legend()
    share = math.exp(final - bigram_loss)
    set_title(ax, f"{name}: {share:.0%} of the bigram's perplexity after {tokens:.1f} M tokens")
    return ax


def _rows(points: Sequence[CurvePoint]) -> list[tuple[int, int, str, str, str]]:
    rows = []
    for start in range(0, len(points), _ROW_STEPS):
        group = points[start : start + _ROW_STEPS]
        last, mean = group[-1], sum(point.loss for point in group) / len(group)
        heldout = "" if last.heldout_loss is None else f"{last.heldout_loss:.4f}"
        rows.append((last.step, last.tokens, f"{last.rate_factor:.4f}", f"{mean:.4f}", heldout))
    return rows
