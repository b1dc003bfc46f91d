"""What fewer bits in experts cost: the part of the notebook on mixtures about quantization."""

from __future__ import annotations

from typing import TYPE_CHECKING

from infopt.experiments.findings.missing import Remark, not_measured
from infopt.experiments.findings.moe import QUANTIZATION, MoeStory
from infopt.select.rows import Row, number, rows_of

if TYPE_CHECKING:
    import pandas as pd


def quantization_table(story: MoeStory) -> pd.DataFrame | Remark:
    """Return what fewer bits in experts cost, as a table for display."""
    if QUANTIZATION not in story.slices:
        return not_measured("Quantized experts")
    import pandas as pd

    rows = {
        row["extra.candidate"]: {
            "scheme": row["extra.quantization_scheme"],
            "weights (MB)": _text(number(row, "memory.weights_bytes"), 1e-6, 2),
            "KL to float (nats)": _text(number(row, "quality.kl_mean"), 1.0, 4),
            "perplexity, docs": perplexity_text(row, "docs"),
            "perplexity, code": perplexity_text(row, "code"),
            "calibrated on fewest tokens": _text(number(row, "extra.fewest_expert_tokens"), 1.0, 0),
        }
        for row in rows_of(story.rows(QUANTIZATION))
    }
    return pd.DataFrame(rows).T.rename_axis("candidate")


def _text(value: float | None, scale: float, digits: int) -> str:
    return "-" if value is None else f"{value * scale:,.{digits}f}"


def perplexity_text(row: Row, kind: str) -> str:
    """Return a perplexity over the reference's with its interval.

    Args:
        row: A run.
        kind: ``docs`` or ``code``.
    """
    ratio = number(row, f"quality.perplexity_ratio.{kind}.ratio")
    if ratio is None:
        return "-"
    low, high = (number(row, f"quality.perplexity_ratio.{kind}.{e}") for e in ("low", "high"))
    ends = "" if low is None or high is None else f" [{low:.3f}, {high:.3f}]"
    return f"{ratio:.3f}x{ends}"


def quantization_sentence(story: MoeStory) -> str:
    """Say where four bits hurt less: in the experts alone, or everywhere."""
    if QUANTIZATION not in story.slices:
        return "Quantized experts are not part of this run."
    losses = {
        str(row["extra.candidate"]): number(row, "quality.kl_mean")
        for row in rows_of(story.rows(QUANTIZATION))
    }
    known = {name: loss for name, loss in losses.items() if loss}
    if not known:
        return "No loss was measured."
    least = min(known, key=lambda name: known[name])
    limit = story.floor.max_kl
    kept = [name for name, loss in known.items() if loss <= limit]
    return (
        f"`{least}` loses least (KL {known[least]:.4f} nats). Within the floor of {limit:g}: "
        f"{', '.join(f'`{name}`' for name in kept) or 'none'}."
    )
