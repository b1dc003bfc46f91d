"""Findings of the notebook on mixtures of experts: tables, and sentences computed from them."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from infopt.bench.stats import proportion_interval
from infopt.experiments.findings.story import CANDIDATE, StageStory, story_parts
from infopt.plotting.data import floats, is_missing
from infopt.results.metrics import metric_of
from infopt.select.rows import Row, number, rows_of

if TYPE_CHECKING:
    import pandas as pd

STAGE = "moe"
PAIR, SPEED, EXPERTS, QUANTIZATION = "pair", "speed", "experts", "expert_quantization"
DENSE, MOE, DENSE_LARGE, COUNTED = "dense", "moe", "dense-large", "counted"
KINDS = ("docs", "code")
BOUND_AT_ONE = 1.15
"""A mixture's decode step of one sequence may take this much longer than the dense model's."""


@dataclass(frozen=True)
class MoeStory(StageStory):
    """The stage's results."""

    @cached_property
    def speed_curves(self) -> pd.DataFrame:
        """Decode steps of the random models: ``candidate`` and the samples ``batch_curve.*``."""
        return self.curves(SPEED)

    def curves(self, slice_name: str) -> pd.DataFrame:
        """Return the times over the batch of a slice, all candidates below each other."""
        import pandas as pd

        if slice_name not in self.slices:
            return pd.DataFrame()
        candidates = [str(name) for name in self.rows(slice_name)[CANDIDATE]]
        parts = [
            self.curve(slice_name, name, "batch_curve.").assign(candidate=name)
            for name in candidates
        ]
        parts = [part for part in parts if "ratio" in part]
        return pd.concat(parts, ignore_index=True) if parts else pd.DataFrame()

    def by_kind(self, table: str) -> pd.DataFrame:
        """Return what the experts' candidate counted, docs above code.

        Args:
            table: ``load``, ``balance`` or ``distinct``.
        """
        import pandas as pd

        if EXPERTS not in self.slices:
            return pd.DataFrame()
        parts = [
            self.curve(EXPERTS, COUNTED, f"{table}.{kind}.").assign(kind=kind) for kind in KINDS
        ]
        return pd.concat(parts, ignore_index=True)

    @property
    def counted(self) -> Row:
        """The candidate that counted its experts."""
        return self.data.row(EXPERTS, COUNTED)


def moe_story(results_dir: str | Path, model: str | None = None) -> MoeStory:
    """Return the results of the pipeline if there are any, else of a miniature.

    Args:
        results_dir: The pipeline's folder.
        model: The large model of the miniature's routing; None for the default model.
    """
    return MoeStory(*story_parts(STAGE, results_dir, model))


def pair_table(story: MoeStory) -> pd.DataFrame:
    """Return the mixture's measures over the dense model's: ``measure``, ratio, ends, verdict."""
    import pandas as pd

    row = story.data.row(PAIR, MOE)
    entries = [
        (f"Perplexity on {kind} (lower is better)", f"quality.perplexity_ratio.{kind}", "ratio")
        for kind in KINDS
    ]
    entries += [
        (f"{label} ({better} is better)", f"comparison.{name}", "median")
        for name, label, better in (
            ("output_tokens_per_s", "Throughput", "higher"),
            ("ttft_s", "Time to first token", "lower"),
            ("tpot_s", "Time per output token", "lower"),
            ("j_per_token", "Energy per token", "lower"),
        )
    ]
    rows = [_ratio_row(row, label, base, value) for label, base, value in entries]
    return pd.DataFrame([found for found in rows if found is not None])


def _ratio_row(row: Row, label: str, base: str, value: str) -> dict[str, object] | None:
    ratio = number(row, f"{base}.{value}")
    if ratio is None:
        return None
    low, high = (number(row, f"{base}.{end}") for end in ("low", "high"))
    low, high = (ratio if end is None else end for end in (low, high))
    verdict = row.get(f"{base}.verdict")
    if is_missing(verdict):
        verdict = "undecided" if low <= 1 <= high else "better" if high < 1 else "worse"
    return {"measure": label, "ratio": ratio, "low": low, "high": high, "verdict": verdict}


def pair_costs(story: MoeStory) -> pd.DataFrame:
    """Return what both models store, read, take and know, as a table for display."""
    import pandas as pd

    columns = {
        "weights stored (M)": ("extra.num_parameters", 1e-6, 2),
        "used by a token (M)": ("extra.num_active_parameters", 1e-6, 2),
        "read per token, 1 at once (MB)": ("extra.read_bytes_per_token_1", 1e-6, 2),
        "read per token, 32 at once (MB)": ("extra.read_bytes_per_token_32", 1e-6, 2),
        "perplexity, docs": ("quality.perplexity.docs", 1.0, 2),
        "perplexity, code": ("quality.perplexity.code", 1.0, 2),
        "TTFT alone (ms)": ("extra.single_ttft_p50_s", 1e3, 2),
        "throughput (tokens/s)": ("throughput.output_tokens_per_s", 1.0, 0),
        _energy_name(story): ("energy.j_per_token", 1e3, 3),
    }
    rows = {
        str(row[CANDIDATE]): {
            name: _shown(number(row, column), scale, digits)
            for name, (column, scale, digits) in columns.items()
        }
        for row in rows_of(story.rows(PAIR))
    }
    return pd.DataFrame(rows)


def _energy_name(story: MoeStory) -> str:
    is_derived = story.data.row(PAIR, MOE).get("energy.derived")
    return "energy (mJ/token" + (", modelled)" if is_derived else ")")


def _shown(value: float | None, scale: float, digits: int) -> str:
    return "-" if value is None else f"{value * scale:,.{digits}f}"


def speed_gains(curves: pd.DataFrame) -> pd.DataFrame:
    """Return ratios of step times as ratios of speeds, in the columns of `plotting.batch_gain`."""
    speeds = curves.assign(
        num_tokens=curves["batch"],
        measured=1 / curves["ratio"],
        predicted=1 / curves["predicted"],
    )
    return speeds.assign(low=1 / curves["high"], high=1 / curves["low"])


def advantages(story: MoeStory, candidate: str) -> pd.DataFrame:
    """Return how much faster a mixture decodes than a dense model with all its weights.

    Both were measured against the same dense model, so this is a quotient of two paired ratios; its
    ends are those of both intervals together.
    """
    curves = story.speed_curves
    own, large = (
        curves.loc[curves["candidate"] == name].set_index("batch")
        for name in (candidate, DENSE_LARGE)
    )
    shared = own.index.intersection(large.index)
    own, large = own.loc[shared], large.loc[shared]
    return own.assign(
        measured=large["ratio"] / own["ratio"],
        low=large["low"] / own["high"],
        high=large["high"] / own["low"],
        predicted=large["predicted"] / own["predicted"],
        num_tokens=shared,
        batch=shared,
    ).reset_index(drop=True)


def mixtures(story: MoeStory) -> list[str]:
    """Return the random mixtures of the run, in the order of the configuration."""
    if SPEED not in story.slices:
        return []
    return [
        str(row[CANDIDATE])
        for row in rows_of(story.rows(SPEED))
        if number(row, "extra.num_experts")
    ]


def load_table(story: MoeStory) -> pd.DataFrame:
    """Return the share of each expert: ``kind``, ``layer``, ``expert``, ``share``, ends."""
    loads = story.by_kind("load")
    totals = loads.groupby(["kind", "layer"])["tokens"].transform("sum")
    pairs = zip(floats(loads, "tokens"), totals, strict=True)
    shares = [proportion_interval(int(count), int(total)) for count, total in pairs]
    return loads.assign(
        share=[share.estimate for share in shares],
        low=[share.low for share in shares],
        high=[share.high for share in shares],
    )


def balance_sentences(story: MoeStory) -> str:
    """Return balance and locality by kind of text, as a list in Markdown."""
    balance, row, lines = story.by_kind("balance"), story.counted, []
    for kind in KINDS:
        own = balance.loc[balance["kind"] == kind]
        same, by_load, chance = (
            row[f"extra.experts_{kind}_{name}"]
            for name in ("same_first", "chance_by_load", "chance")
        )
        lines.append(
            f"- `{kind}`: Jain's index {floats(own, 'jain').min():.3f} in the worst layer (1 is "
            f"balanced), entropy {floats(own, 'entropy').min():.1%} of the largest, the busiest "
            f"expert {floats(own, 'imbalance').max():.2f} times the mean. A token's best expert is "
            f"that of the token before in **{same:.0%}** of cases; by chance {chance:.1%}, and "
            f"{by_load:.1%} with these loads."
        )
    return "\n".join(lines)


def distinct_sentence(story: MoeStory) -> str:
    """Return how far measured distinct experts lie from the formula."""
    table = story.by_kind("distinct")
    gap = floats(table, "mean") / floats(table, "formula") - 1
    over = int((floats(table, "most") > floats(table, "bound")).sum())
    return (
        f"Decode steps touch between {gap.min():+.1%} and {gap.max():+.1%} of what even choices "
        f"would; no step exceeds the bound ({over} of {len(table)} sizes do)."
    )


def counting_sentence(story: MoeStory) -> str:
    """Return what counting costs."""
    name = metric_of("output_tokens_per_s").label.lower()
    row, base = story.counted, "comparison.output_tokens_per_s"
    if number(row, f"{base}.median") is None:
        return "What counting costs was not compared."
    low, median, high = (row[f"{base}.{end}"] for end in ("low", "median", "high"))
    return f"Counting: {median:.2f}x the {name} without it [{low:.2f}, {high:.2f}]."


def grouped_sentences(story: MoeStory) -> str:
    """Return what running the experts together gains over a loop over them, as a list."""
    lines = []
    for name in mixtures(story):
        row = story.data.row(SPEED, name)
        low, median, high = (row[f"extra.grouped_{end}"] for end in ("low", "median", "high"))
        lines.append(
            f"- `{name}` ({row['extra.num_experts']:.0f} experts, "
            f"{row['extra.grouped_rows']:.0f} tokens): {median:.2f}x the speed of a loop over the "
            f"experts [{low:.2f}, {high:.2f}]."
        )
    return "\n".join(lines) or "Random mixtures are not part of this run."


def near_one(table: pd.DataFrame, batch: float) -> Row:
    """Return the entry of a curve at a batch, or the nearest to it."""
    return rows_of(table)[int(np.argmin(np.abs(floats(table, "batch") - batch)))]
