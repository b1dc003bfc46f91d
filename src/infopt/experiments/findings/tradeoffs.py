"""What the notebook on trade-offs says: the finalists on four axes, the choice, and its reasons.

story = tradeoffs_story(results_dir)
front_axes(story, "latency.ttft_s.p50", "throughput.output_tokens_per_s")
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from infopt.experiments import figures
from infopt.experiments.figures import short_name, slice_rows
from infopt.experiments.findings.miniature import DEFAULT_MODEL
from infopt.experiments.findings.miniature_select import run_select_miniature
from infopt.experiments.findings.missing import Remark, not_measured
from infopt.experiments.recommend import finalists_manifests, finalists_table
from infopt.experiments.select_spec import COMPOSED
from infopt.plotting import goodput_gains, ratio_forest, written
from infopt.plotting.data import floats
from infopt.results import read_table
from infopt.results.html import format_ratio, format_value
from infopt.select import Recommendation, read_recommendation
from infopt.select.energy_order import is_derived
from infopt.select.rows import number, rows_of
from infopt.user_cache import cache_dir

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes

TTFT, THROUGHPUT = "latency.ttft_s.p50", "throughput.output_tokens_per_s"
ENERGY, QUALITY = "energy.j_per_request", "quality.kl_mean"


@dataclass(frozen=True)
class TradeoffStory:
    """What the notebook tells.

    Attributes:
        recommendation: The choice with everything it rests on.
        finalists: The composition and its rivals, with quality where it was measured.
        note: Where the numbers come from, as Markdown.
    """

    recommendation: Recommendation
    finalists: pd.DataFrame
    note: str


def tradeoffs_story(results_dir: str | Path, model: str | None = None) -> TradeoffStory:
    """Read the last stage's results, or measure it in small.

    Args:
        results_dir: Results of the pipeline.
        model: Of the miniature; None is the default model.
    """
    folder = Path(results_dir)
    path = folder / "recommendation.yaml"
    if path.exists() and (folder / "slices" / "select" / "finalists.json").exists():
        table = finalists_table(finalists_manifests(folder), folder)
        note = f"These are the results of the pipeline in `{folder.name}/`."
        return TradeoffStory(read_recommendation(path), slice_rows(table, "finalists"), note)
    name = model or DEFAULT_MODEL
    home = cache_dir() / "notebooks" / "tradeoffs" / Path(name).name
    found, table_path = run_select_miniature(name, home)
    note = (
        "There are no results of the pipeline here (`make run` makes them): three techniques were "
        "composed and measured just now, in small, without quality. Three pairs decide nothing."
    )
    return TradeoffStory(found, slice_rows(read_table(table_path), "finalists"), note)


def front_axes(story: TradeoffStory, x: str = TTFT, y: str = THROUGHPUT) -> Axes:
    """Draw the finalists on two axes (see ``infopt.experiments.figures.front_axes``).

    A run that lacks one of them is left out. An axis that fewer than two runs have gives way to the
    throughput or the time to first token.
    """
    x = x if _has(story, x) else TTFT
    y = y if _has(story, y) else THROUGHPUT
    return figures.front_axes(story.finalists, story.recommendation, x, y)


def worth_axes(story: TradeoffStory, column: str = THROUGHPUT) -> Axes:
    """Draw what each technique is worth on one axis: above 1 the composition is better for it."""
    import pandas as pd

    effects = [e for e in story.recommendation.ablation if e.column == column and e.low is not None]
    if not effects:
        text = "No technique differs from its reference here, or no pair was measured."
        return written(text, title="There is nothing to take back")
    base = "comparison.output_tokens_per_s"
    rows = pd.DataFrame({
        "technique": [e.technique for e in effects],
        "status": "ok",
        f"{base}.median": [e.worth for e in effects],
        f"{base}.low": [e.low for e in effects],
        f"{base}.high": [e.high for e in effects],
        f"{base}.verdict": [e.verdict for e in effects],
        f"{base}.reference": "without it",
    })  # fmt: skip
    best = max(effects, key=lambda e: e.worth or 0)
    name = best.label.partition(" (")[0]
    title = f"{name}: {best.technique} is worth most, {best.worth:.2f}x"
    axes = ratio_forest(rows, label="technique", title=title)
    axes.set_xlabel(f"{name}: times better with it   better →\nhollow: undecided")
    return axes


def worth_table(story: TradeoffStory) -> pd.DataFrame:
    """Return what each technique is worth, a column per axis."""
    import pandas as pd

    cells: dict[str, dict[str, str]] = {}
    for effect in story.recommendation.ablation:
        if effect.worth is None:
            change = effect.composed - effect.without
            text = f"{change:+.3g}" if effect.verdict != "equal" else "equal"
        else:
            ends = (effect.low or effect.worth, effect.high or effect.worth)
            text = format_ratio(effect.worth, *ends)
        cells.setdefault(effect.label, {})[effect.technique] = text
    table = pd.DataFrame(cells).fillna("not measured")
    table.index.name = "technique"
    return table


def front_sentence(story: TradeoffStory) -> str:
    """Say who is on the front of all measured axes, and what was left out of it."""
    front = story.recommendation.front
    if front is None or not front.axes:
        return "No axis was measured for every finalist, so there is no front."
    names = ", ".join(short_name(run) for run in front.runs)
    left = "; ".join(front.left_out.values())
    more = f" Left out: {left}." if left else ""
    more += "".join(
        f" **{short_name(run)}** has no part in it: {why}." for run, why in front.excluded.items()
    )
    return (
        f"On the axes {', '.join(front.axes)} together, **{names}** cannot be beaten without "
        f"losing on another axis; the knee is **{short_name(front.knee or '')}**. The front "
        f"dominates {front.hypervolume:.0%} of the space between the best and the worst "
        f"values.{more}"
    )


def whole_sentence(story: TradeoffStory) -> str:
    """Say whether the whole is the product of its parts."""
    found = [f"- {i.message}" for i in story.recommendation.interactions]
    return "\n".join(found) or "With fewer than two techniques there is nothing to interact."


def baselines_axes(story: TradeoffStory) -> Axes | Remark:
    """Draw the goodput of the choice beside that of the baselines."""
    gains = figures.goodput_table(story.recommendation)
    return not_measured("A comparison with baselines") if gains is None else goodput_gains(gains)


def baselines_sentence(story: TradeoffStory) -> str:
    """Say how the choice does against what one would serve otherwise."""
    found = [f"- {gain.message}" for gain in story.recommendation.baselines]
    return "\n".join(found) or "Nothing was compared: no finalist keeps every limit."


def sensitivity_sentence(story: TradeoffStory) -> str:
    """Say what would change the choice."""
    if story.recommendation.run is None:
        return "There is no choice to change: no finalist keeps every limit."
    found = [f"- {short_name(s.message)}" for s in story.recommendation.sensitivity]
    return "\n".join(found) or "No limit that was measured would change the choice."


def answer(story: TradeoffStory) -> str:
    """Answer the question of the notebook from this run."""
    found = story.recommendation
    if found.run is None:
        return f"**Nothing yet.** {found.reason}"
    row = next(row for row in rows_of(story.finalists) if row["run"] == found.run)
    speed = f"{format_value(float(row[THROUGHPUT]), 3)} tokens/s"
    ttft = f"{format_value(float(row[TTFT]) * 1e3, 3)} ms to the first token"
    energy = number(row, ENERGY)
    word = " (derived)" if is_derived(row) else ""
    joules = "" if energy is None else f", {format_value(energy, 2)} J{word} per request"
    techniques = [e for e in found.ablation if e.column == THROUGHPUT and e.verdict == "better"]
    helped = ", ".join(f"{e.technique} ({e.worth:.2f}x)" for e in techniques) or "none beyond doubt"
    options = ", ".join(f"`{name}: {value}`" for name, value in found.changed_options().items())
    lines = [
        f"**Serve {short_name(found.run)}** ({found.status}): {speed}, {ttft}{joules} under the "
        f"load of the comparison. That is {options}; every other option is at its default.",
        f"**Why:** {short_name(found.reason)}",
        f"**What raises its throughput:** {helped}.",
        *(f"**Against a baseline:** {gain.message}" for gain in found.baselines),
    ]
    return "\n".join(f"- {line}" for line in lines)


def check(story: TradeoffStory) -> None:
    """Assert what the notebook claims.

    Raises:
        AssertionError: The recommendation contradicts its own table.
    """
    found = story.recommendation
    runs = set(story.finalists["run"])
    assert found.run is None or found.run in runs, "the choice is one of the finalists"
    assert f"select/finalists.{COMPOSED}" in runs, "the composition was measured"
    for effect in found.ablation:
        if effect.low is not None and effect.high is not None and effect.worth is not None:
            assert effect.low <= effect.worth <= effect.high, effect
            if effect.verdict == "better":
                assert effect.low > 1, effect
    if found.front is not None:
        assert set(found.front.runs) <= runs, "the front is made of finalists"


def _has(story: TradeoffStory, column: str) -> bool:
    table = story.finalists
    return column in table.columns and np.isfinite(floats(table, column)).sum() > 1
