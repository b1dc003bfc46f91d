"""What each scheme loses: divergence, perplexity, tasks; and where fewer bits become a cliff."""

from __future__ import annotations

import re
from collections.abc import Mapping
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from infopt.experiments.findings.missing import Remark, not_measured
from infopt.experiments.findings.quantization import (
    BITS,
    CANDIDATE,
    FLOAT_TRAINED,
    KL,
    SCHEMES,
    QuantizationStory,
)
from infopt.experiments.findings.tables import compare_table
from infopt.plotting import quality_bits, task_scores
from infopt.plotting.data import floats
from infopt.results.html import format_value
from infopt.select.rows import Row, number, rows_of

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes

RATIO = "quality.perplexity_ratio.{kind}.ratio"
_TASK = "quality.tasks."
_WIDTH = re.compile(r"int(\d)-rtn-g\d+|int(8)")

NOISE_GROWTH = 4.0
"""Factor on the KL that one bit less costs: the step doubles, its noise power quadruples."""


def bits_axes(story: QuantizationStory, name: str, value: str = KL) -> Axes | Remark:
    """Draw a loss over bits per weight for the candidates of a slice."""
    if name not in story.slices:
        return not_measured(f"The slice `{name}`")
    rows = story.rows(name)
    if value not in rows.columns:
        return not_measured("Quality")
    limits = story.limits if value == KL else story.ratio_limits
    return quality_bits(rows, value, label=CANDIDATE, limits=limits)


def quality_table(story: QuantizationStory, name: str) -> pd.DataFrame | Remark:
    """Return bits, divergence and perplexity of the candidates of a slice."""
    if name not in story.slices:
        return not_measured(f"The slice `{name}`")
    columns = [BITS, KL, RATIO.format(kind="docs"), RATIO.format(kind="code")]
    columns += ["quality.top1_agreement", "extra.quantization_path"]
    table = compare_table(story.rows(name), columns)
    return table.rename(columns={"bits": "bits per weight", "quantization path": "path"})


def order_sentence(story: QuantizationStory, name: str) -> str:
    """List the candidates of a slice from least to most lost."""
    if name not in story.slices:
        return ""
    rows = [row for row in rows_of(story.rows(name)) if number(row, KL) is not None]
    ordered = sorted(rows, key=lambda row: row[KL])
    parts = [f"`{row[CANDIDATE]}` {_short(row[KL])}" for row in ordered]
    return f"From least to most lost (KL in nats): {', '.join(parts)}. {_overlaps(ordered)}".strip()


def _overlaps(ordered: list[Row]) -> str:
    """Say which neighbours in the order cannot be told apart."""
    ends = "quality.fidelity_details.kl_{}"
    pairs = [
        f"`{better[CANDIDATE]}` and `{worse[CANDIDATE]}`"
        for better, worse in pairwise(ordered)
        if (number(better, ends.format("high")) or 0.0) > (number(worse, ends.format("low")) or 0.0)
    ]
    return f"Intervals overlap, so the order is open, between {', '.join(pairs)}." if pairs else ""


def cliff_sentence(story: QuantizationStory) -> str:
    """Say what each bit less costs on the model whose weights were never quantized."""
    steps = kl_by_width(story)
    if len(steps) < 2:
        return "Too few widths were measured to see a cliff."
    widths = sorted(steps, reverse=True)
    parts = []
    for wide, narrow in pairwise(widths):
        growth = steps[narrow] / steps[wide] if steps[wide] else float("inf")
        expected = NOISE_GROWTH ** (wide - narrow)
        parts.append(
            f"from {wide} to {narrow} bits {growth:.3g}x (noise alone: about {expected:.0f}x)"
        )
    return (
        f"Rounding to nearest, the KL grows {', '.join(parts)}. The widest that keeps the floor of "
        f"{story.floor.max_kl:g} nats by rounding alone: {_widest(steps, story.floor.max_kl)}."
    )


def kl_by_width(story: QuantizationStory) -> dict[int, float]:
    """Return the KL of plain rounding by bits per weight, on the float-trained model."""
    if FLOAT_TRAINED not in story.slices:
        return {}
    found = {}
    for row in rows_of(story.rows(FLOAT_TRAINED)):
        match = _WIDTH.fullmatch(str(row[CANDIDATE]))
        kl = number(row, KL)
        if match and kl is not None:
            found[int(match[1] or match[2])] = kl
    return found


def _widest(steps: Mapping[int, float], limit: float) -> str:
    kept = [width for width, kl in steps.items() if kl <= limit]
    return f"int{min(kept)}" if kept else "none"


def tasks_axes(story: QuantizationStory) -> Axes | Remark:
    """Draw the scores of all schemes in all tasks."""
    table = task_table(story)
    return not_measured("Tasks") if table.empty else task_scores(table, story.reference())


def task_table(story: QuantizationStory) -> pd.DataFrame:
    """Return scores with intervals, one row per task and scheme, least lost first."""
    import pandas as pd

    rows = rows_of(story.rows(SCHEMES))
    # The reference comes first, whatever its KL to float32 is.
    order = sorted(rows, key=lambda r: (r[CANDIDATE] != story.reference(), r.get(KL) or 0.0))
    columns = ["task", "scheme", "score", "low", "high", "n"]
    return pd.DataFrame(
        [
            {"task": task, "scheme": row[CANDIDATE]}
            | {key: row[f"{_TASK}{task}.{key}"] for key in columns[2:]}
            for task in _tasks(rows)
            for row in order
            if number(row, f"{_TASK}{task}.score") is not None
        ],
        columns=pd.Index(columns),
    )


def _tasks(rows: list[Row]) -> list[str]:
    columns = [c for c in rows[0] if c.startswith(_TASK) and c.endswith(".score")]
    return [c.removeprefix(_TASK).removesuffix(".score") for c in columns]


def tasks_sentence(story: QuantizationStory) -> str:
    """Say which task broke first: the one that fails at the smallest divergence."""
    broken = first_broken(story)
    names = _tasks(rows_of(story.rows(SCHEMES)))
    if not names:
        return ""
    if not broken:
        return "No scheme scored below the reference's interval in any task."
    parts = [
        f"**{task}** with `{row[CANDIDATE]}` (KL {_short(row[KL])}, score "
        f"{row[f'{_TASK}{task}.score']:.0%}, reference at least "
        f"{story.reference_row(SCHEMES)[f'{_TASK}{task}.low']:.0%})"
        for task, row in broken.items()
    ]
    kept = [task for task in names if task not in broken]
    text = f"In the order in which they break as the KL grows: {', '.join(parts)}."
    return text + (f" Nothing broke {', '.join(kept)} beyond chance." if kept else "")


def first_broken(story: QuantizationStory) -> dict[str, Row]:
    """Return, by task, the scheme with the smallest KL that misses the task's floor, rising."""
    found: dict[str, Row] = {}
    for row in sorted(rows_of(story.marked), key=lambda row: row.get(KL) or 0.0):
        for violation in row["quality_violations"]:
            task = violation.constraint.removeprefix("task:")
            if task != violation.constraint and violation.value is not None:
                found.setdefault(task, row)
    return found


def items_sentence(story: QuantizationStory) -> str:
    """Say how many items stand behind the scores, and what they could resolve."""
    row = story.reference_row(SCHEMES)
    parts = [f"{name} {row[f'{_TASK}{name}.n']:.0f}" for name in _tasks([row])]
    return f"Items per task: {', '.join(parts)}." if parts else ""


def check(story: QuantizationStory) -> None:
    """Assert what the sections on quality claim.

    Raises:
        AssertionError: A claim does not hold for these results.
    """
    steps = kl_by_width(story)
    losses = [steps[width] for width in sorted(steps, reverse=True)]
    assert losses == sorted(losses), "fewer bits, rounded alike, never lose less"
    bits = floats(story.rows(SCHEMES), BITS)
    assert np.isfinite(bits).all(), "the bits per weight are known"


def _short(value: float) -> str:
    return format_value(float(value), 2)
