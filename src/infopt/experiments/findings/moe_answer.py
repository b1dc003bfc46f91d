"""Plots and the answer of the notebook on mixtures of experts."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from infopt.experiments.findings.missing import Remark, not_measured
from infopt.experiments.findings.moe import (
    BOUND_AT_ONE,
    DENSE,
    DENSE_LARGE,
    EXPERTS,
    MOE,
    PAIR,
    SPEED,
    MoeStory,
    advantages,
    load_table,
    mixtures,
    near_one,
    pair_table,
    speed_gains,
)
from infopt.experiments.findings.moe_quantization import perplexity_text
from infopt.experiments.findings.routing import check_routing, routing_lines
from infopt.plotting import batch_gain, distinct_experts, expert_loads, measure_ratios
from infopt.plotting.data import floats
from infopt.results.html import format_ratio
from infopt.select.rows import number, rows_of

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes

_STEP = "Speed of a step, ratio to dense"


def pair_axes(story: MoeStory) -> Axes | Remark:
    """Return the trained mixture's measures over those of the dense model of equal work."""
    if PAIR not in story.slices:
        return not_measured("The trained pair")
    table = pair_table(story)
    return measure_ratios(table, reference=DENSE, title=_pair_title(table))


def _pair_title(table: pd.DataFrame) -> str:
    texts = table.loc[[str(name).startswith("Perplexity") for name in table["measure"]]]
    better = int((texts["verdict"] == "better").sum())
    shown = ", ".join(f"{row['ratio']:.3f}x" for row in rows_of(texts))
    speed = table.loc[[str(name).startswith("Throughput") for name in table["measure"]]]
    found = f"Perplexity {shown} of the dense model's ({better} of {len(texts)} beyond doubt)"
    return found + "".join(f", throughput {row['ratio']:.2f}x" for row in rows_of(speed))


def speed_axes(story: MoeStory) -> Axes | Remark:
    """Return decode steps of the random models against the dense one, beside the formula."""
    if SPEED not in story.slices:
        return not_measured("The random models")
    curves = story.speed_curves
    worst = rows_of(curves.loc[curves["candidate"].isin(mixtures(story))])
    slowest = max(worst, key=lambda row: row["ratio"])
    first = near_one(curves.loc[curves["candidate"] == slowest["candidate"]], 1)
    title = (
        f"{slowest['candidate']}: a step takes {first['ratio']:.2f}x the dense model's time at "
        f"{first['batch']:.0f}, {slowest['ratio']:.2f}x at {slowest['batch']:.0f} sequences "
        f"(formula {slowest['predicted']:.2f}x)"
    )
    return _gains(speed_gains(curves), DENSE, title)


def advantage_axes(story: MoeStory) -> Axes | Remark:
    """Return how much faster mixtures are than a dense model with all their weights."""
    if SPEED not in story.slices or DENSE_LARGE not in set(story.speed_curves["candidate"]):
        return not_measured("A dense model as large as the mixtures")
    import pandas as pd

    parts = [advantages(story, name) for name in mixtures(story)]
    title = "; ".join(advantage_sentence(part) for part in parts)
    return _gains(
        pd.concat(parts, ignore_index=True),
        DENSE_LARGE,
        title,
        "Speed of a step, ratio to dense-large",
    )


def advantage_sentence(part: pd.DataFrame) -> str:
    """Say where a mixture's advantage over a dense model of its size is most and least."""
    ordered = part.sort_values(by=["batch"])
    speeds = floats(ordered, "measured")
    shown = {
        "most": ordered.iloc[int(np.argmax(speeds))],
        "least": ordered.iloc[int(np.argmin(speeds))],
        "in the end": ordered.iloc[-1],
    }
    texts: dict[float, str] = {}
    for word, row in shown.items():
        text = f"{word} {row['measured']:.1f}x at {row['batch']:.0f}"
        texts.setdefault(float(row["batch"]), text)
    return f"{part['candidate'].iloc[0]}: {', '.join(texts.values())} at once"


def tiny_axes(story: MoeStory) -> Axes | Remark:
    """Return decode steps of the trained pair, whose weights lie in the caches."""
    curves = story.curves(PAIR)
    if curves.empty:
        return not_measured("The trained pair over the batch")
    first, last = near_one(curves, 1), near_one(curves, float(floats(curves, "batch").max()))
    title = (
        f"Weights in the caches: the step of {MOE} takes {first['ratio']:.2f}x at "
        f"{first['batch']:.0f}, {last['ratio']:.2f}x at {last['batch']:.0f} sequences"
    )
    return _gains(speed_gains(curves), DENSE, title)


def _gains(gains: pd.DataFrame, reference: str, title: str, measure: str = _STEP) -> Axes:
    return batch_gain(
        gains,
        label="candidate",
        reference=reference,
        title=title,
        measure=measure,
        predicted_label="by formula",
    )


def load_axes(story: MoeStory) -> Axes | Remark:
    """Return each expert's share of its layer."""
    if EXPERTS not in story.slices:
        return not_measured("The experts' load")
    return expert_loads(load_table(story), int(story.counted["extra.num_experts"]))


def distinct_axes(story: MoeStory) -> Axes | Remark:
    """Return distinct experts of a step over its sequences."""
    if EXPERTS not in story.slices:
        return not_measured("Distinct experts")
    table = story.by_kind("distinct")
    return distinct_experts(table, int(story.counted["extra.num_experts"]))


def bound_sentence(story: MoeStory) -> str:
    """Say whether each mixture keeps its time at one sequence."""
    if SPEED not in story.slices:
        return "Random models are not part of this run."
    parts = []
    for name in mixtures(story):
        row = near_one(story.speed_curves.loc[story.speed_curves["candidate"] == name], 1)
        kept = "within" if row["ratio"] <= BOUND_AT_ONE else "above"
        parts.append(
            f"`{name}` takes {format_ratio(row['ratio'], row['low'], row['high'])} the dense "
            f"model's time, {kept} the {BOUND_AT_ONE:g}x that running experts may cost"
        )
    return f"At one sequence {'; '.join(parts)}."


def formula_sentence(story: MoeStory) -> str:
    """Say how far measured step times lie from the weights they read."""
    curves = story.speed_curves
    if curves.empty:
        return "Random models are not part of this run."
    own = curves.loc[curves["candidate"].isin(mixtures(story))]
    errors = floats(own, "ratio") / floats(own, "predicted") - 1
    worst = own.iloc[int(np.argmax(np.abs(errors)))]
    return (
        f"Half of the points lie within {np.median(np.abs(errors)):.0%} of the formula; farthest "
        f"is `{worst['candidate']}` at a batch of {worst['batch']:.0f}, {worst['ratio']:.2f}x "
        f"measured, {worst['predicted']:.2f}x from the weights that even choices read and use."
    )


def answer(story: MoeStory) -> str:
    """Return the conclusion as Markdown."""
    lines = [
        *_verdict(story),
        *_quality(story),
        *_traffic(story),
        *_memory(story),
        *routing_lines(story),
    ]
    text = "\n".join(f"- {line}" for line in lines)
    if story.data.is_miniature:
        text += "\n\nThese are first impressions of a miniature; `make run` measures properly."
    return text


def _verdict(story: MoeStory) -> list[str]:
    """Say which of the trained pair to take, where quality and speed do not contradict."""
    if PAIR not in story.slices:
        return []
    rows = rows_of(pair_table(story))
    texts = [row for row in rows if str(row["measure"]).startswith("Perplexity")]
    (speed,) = [row for row in rows if str(row["measure"]).startswith("Throughput")]
    num_better = sum(row["verdict"] == "better" for row in texts)
    num_worse = sum(row["verdict"] == "worse" for row in texts)
    word = "A trade"
    if not num_better and speed["verdict"] == "worse":
        word = "Dense"
    elif num_better and not num_worse and speed["verdict"] != "worse":
        word = "Sparse"
    return [
        f"**{word}, at equal work per token:** the trained mixture predicts {num_better} of "
        f"{len(texts)} kinds of text better beyond doubt and {num_worse} worse, at "
        f"{format_ratio(speed['ratio'], speed['low'], speed['high'])} the throughput "
        f"({speed['verdict']})."
    ]


def _quality(story: MoeStory) -> list[str]:
    if PAIR not in story.slices:
        return []
    row = story.data.row(PAIR, MOE)
    texts = [f"{perplexity_text(row, kind)} on {kind}" for kind in ("docs", "code")]
    return [
        "**Quality at equal work per token:** the mixture's perplexity is "
        f"{' and '.join(texts)} of the dense model's."
    ]


def _traffic(story: MoeStory) -> list[str]:
    """Say from which batch on a mixture is no faster than dense with all its weights."""
    if SPEED not in story.slices:
        return []
    lines = []
    curves = story.speed_curves
    for name in mixtures(story):
        own = curves.loc[curves["candidate"] == name]
        first, worst = near_one(own, 1), own.iloc[int(np.argmax(floats(own, "ratio")))]
        lines.append(
            f"**`{name}` against a dense model of equal work:** {first['ratio']:.2f}x its time at "
            f"{first['batch']:.0f} sequence, at worst {worst['ratio']:.2f}x at "
            f"{worst['batch']:.0f}: a batch of different tokens reads other experts."
        )
        if DENSE_LARGE in set(curves["candidate"]):
            lines.append(
                f"**`{name}` against a dense model of equal size**, in speed: "
                f"{advantage_sentence(advantages(story, name)).partition(': ')[2]}."
            )
    return lines


def _memory(story: MoeStory) -> list[str]:
    if PAIR not in story.slices:
        return []
    ratio = _over(story, "extra.num_parameters")
    return [f"**Memory:** the trained mixture stores {ratio:.2f}x the dense model's weights."]


def _over(story: MoeStory, column: str) -> float:
    own, base = (number(story.data.row(PAIR, name), column) for name in (MOE, DENSE))
    return (own or 0.0) / base if base else float("nan")


def check(story: MoeStory) -> None:
    """Assert what the notebook says.

    Raises:
        AssertionError: The run contradicts it.
    """
    for name in (PAIR, SPEED):
        curves = story.curves(name)
        if len(curves):
            assert (floats(curves, "low") <= floats(curves, "ratio")).all()
            assert (floats(curves, "ratio") <= floats(curves, "high")).all()
    if EXPERTS in story.slices:
        distinct = story.by_kind("distinct")
        assert (floats(distinct, "most") <= floats(distinct, "bound")).all()
        shares = load_table(story).groupby(["kind", "layer"])["share"].sum()
        assert np.allclose(np.asarray(shares, dtype=float), 1.0)
    check_routing(story)
