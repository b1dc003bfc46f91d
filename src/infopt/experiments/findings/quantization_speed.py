"""What each weight format gains: steps by batch size against the roofline, a lone request, load."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from infopt.bench.roofline import MachinePeaks, predicted_seconds, roofline_point
from infopt.bench.step_cost import StepCost
from infopt.experiments.findings.missing import Remark, not_measured
from infopt.experiments.findings.quantization import (
    BITS,
    CANDIDATE,
    SCHEMES,
    QuantizationStory,
    weight_bytes,
)
from infopt.plotting import bars_with_interval, batch_gain, ratio_forest
from infopt.plotting.data import floats
from infopt.results.html import format_ratio
from infopt.select.rows import Row, number, rows_of

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes

SIZES = (1, 2, 4, 8, 16, 32)
"""Batches that the gain is predicted for; the engine's limit decides which are also measured."""

LONE = {
    "extra.single_ttft_p50_s": "first token (ms)",
    "extra.single_tpot_p50_s": "each further token (ms)",
    "extra.single_e2e_p50_s": "whole answer (ms)",
}
THROUGHPUT = "comparison.output_tokens_per_s"
_MAX_LINES = 5


@dataclass(frozen=True, slots=True)
class Gain:
    """How many times faster decode steps are than the reference's.

    Attributes:
        scheme: Whose.
        table: One row per size: ``num_tokens``, ``measured``, ``low``, ``high`` (NaN where only
            predicted), ``predicted`` and ``regime`` (what limited the measured step).
    """

    scheme: str
    table: pd.DataFrame

    @property
    def measured(self) -> pd.DataFrame:
        """The sizes that were timed."""
        return self.table.loc[np.isfinite(floats(self.table, "measured"))]

    def fades_at(self, column: str) -> float | None:
        """Return the first size with less than half of the first size's gain above 1.

        None where it never does, or where there was no gain to lose.

        Args:
            column: ``measured`` or ``predicted``.
        """
        table = self.table.loc[np.isfinite(floats(self.table, column))]
        gains = floats(table, column) - 1
        if not len(gains) or gains[0] <= 0:
            return None
        faded = np.flatnonzero(gains < gains[0] / 2)
        return float(floats(table, "num_tokens")[faded[0]]) if len(faded) else None

    @property
    def ends_at(self) -> float | None:
        """First measured size that is not faster than the reference beyond doubt, or None."""
        table = self.measured
        ended = np.flatnonzero(floats(table, "low") <= 1)
        return float(floats(table, "num_tokens")[ended[0]]) if len(ended) else None


def gain_of(story: QuantizationStory, candidate: str) -> Gain | None:
    """Return the gain of a scheme by batch size; None where its steps were not timed.

    The interval divides opposite ends of both intervals: steps of two models are not paired, so it
    is wider than 95 %.
    """
    import pandas as pd

    names = (story.reference(), candidate)
    base, own = (story.curve(SCHEMES, name, "decode_") for name in names)
    if base.empty or own.empty:
        return None
    base, own = (curve.set_index("num_tokens") for curve in (base, own))
    both = base.index.intersection(own.index)
    base, own = base.loc[both], own.loc[both]
    table = pd.DataFrame(
        {
            "measured": base["measured_s"] / own["measured_s"],
            "low": base["low_s"] / own["high_s"],
            "high": base["high_s"] / own["low_s"],
            "regime": _regimes(story.scheme(candidate), own),
        }
    )
    table = table.reindex(sorted({*both, *SIZES}))
    predicted = [_predicted(story, name, table.index.to_numpy()) for name in names]
    table["predicted"] = predicted[0] / predicted[1]
    return Gain(candidate, table.rename_axis("num_tokens").reset_index())


def _predicted(story: QuantizationStory, candidate: str, sizes: np.ndarray) -> np.ndarray:
    """Return the least times of steps in seconds; bytes and FLOPs grow linearly with the batch."""
    curve = story.curve(SCHEMES, candidate, "decode_")
    x = floats(curve, "num_tokens")
    if len(x) < 2:
        return np.full(len(sizes), np.nan)
    fits = (np.polyfit(x, floats(curve, column), 1) for column in ("bytes", "flops"))
    moved, work = (np.polyval(fit, sizes) for fit in fits)
    peaks = _peaks(story.scheme(candidate))
    costs = [StepCost(weight_bytes=m, linear_flops=w) for m, w in zip(moved, work, strict=True)]
    return np.array([predicted_seconds(cost, peaks) or np.nan for cost in costs])


def _regimes(row: Row, curve: pd.DataFrame) -> list[str | None]:
    """Return what limited each timed step."""
    weights, peaks = weight_bytes(curve.reset_index()), _peaks(row)
    costs = [
        StepCost(weight_bytes=weights, kv_read_bytes=moved - weights, linear_flops=work)
        for moved, work in zip(floats(curve, "bytes"), floats(curve, "flops"), strict=True)
    ]
    times = floats(curve, "measured_s")
    return [roofline_point(c, float(t), peaks).regime for c, t in zip(costs, times, strict=True)]


def _peaks(row: Row) -> MachinePeaks:
    return MachinePeaks(
        number(row, "roofline.bandwidth_bytes_per_s"), number(row, "roofline.flops_per_s")
    )


def gains(story: QuantizationStory) -> dict[str, Gain]:
    """Return the gains of all schemes whose steps were timed, by name."""
    names = [str(n) for n in story.rows(SCHEMES)[CANDIDATE] if str(n) != story.reference()]
    found = {name: gain_of(story, name) for name in names}
    return {name: gain for name, gain in found.items() if gain is not None}


def gain_axes(story: QuantizationStory) -> Axes | Remark:
    """Draw the gain by batch size, one scheme per kind of product."""
    import pandas as pd

    found = gains(story)
    if not found:
        return not_measured("The time of single steps")
    parts = [found[name].table.assign(scheme=name) for name in shown_schemes(story, list(found))]
    return batch_gain(pd.concat(parts, ignore_index=True), reference=story.unrounded)


def shown_schemes(story: QuantizationStory, names: Sequence[str]) -> list[str]:
    """Return the schemes that a plot has room for: the least lossy of each product.

    Schemes whose codes have the same width run the same kernels, unless inputs are rounded too.
    """
    rows = [story.scheme(name) for name in names]
    best: dict[tuple[int, bool], str] = {}
    for row in sorted(rows, key=lambda row: number(row, "quality.kl_mean") or 0.0):
        name = str(row[CANDIDATE])
        kind = (round(row[BITS]), "a8" in name or name.startswith("fp8"))
        best.setdefault(kind, name)
    picked = list(best.values())[:_MAX_LINES]
    if story.chosen in names and story.chosen not in picked:
        picked = [*picked[: _MAX_LINES - 1], story.chosen]
    return [name for name in names if name in picked]


def gain_table(story: QuantizationStory) -> pd.DataFrame | Remark:
    """Return the gain of every scheme at the smallest and the largest measured batch."""
    import pandas as pd

    found = gains(story)
    if not found:
        return not_measured("The time of single steps")
    return pd.DataFrame({name: _gain_cells(gain) for name, gain in found.items()}).T


def _gain_cells(gain: Gain) -> dict[str, str]:
    cells = {}
    rows = gain.measured.to_dict("records")
    for row in dict.fromkeys((0, len(rows) - 1)):
        values = rows[row]
        at = f"{values['num_tokens']:.0f} in the step"
        cells[f"{at}: measured"] = format_ratio(*(values[c] for c in ("measured", "low", "high")))
        cells[f"{at}: predicted"] = f"{values['predicted']:.2f}x"
        cells[f"{at}: limited by"] = str(values["regime"])
    return cells


def fade_sentences(story: QuantizationStory) -> str:
    """Say, per drawn scheme, where its gain fades: measured, predicted, and what limits there."""
    found = gains(story)
    lines = [_fade(found[name]) for name in shown_schemes(story, list(found))]
    return "\n".join(f"- {line}" for line in lines)


def _fade(gain: Gain) -> str:
    rows = gain.measured.to_dict("records")
    first, last = rows[0], rows[-1]
    return (
        f"`{gain.scheme}`: {_at(first)}, {_at(last)}. {_fading(gain)} At "
        f"{last['num_tokens']:.0f} the step is limited by **{last['regime']}**."
    )


def _at(row: dict[str, float]) -> str:
    return f"{row['measured']:.2f}x at {row['num_tokens']:.0f} (predicted {row['predicted']:.2f}x)"


def _fading(gain: Gain) -> str:
    measured, predicted = gain.fades_at("measured"), gain.fades_at("predicted")
    largest = floats(gain.measured, "num_tokens").max()
    seen = f"up to {largest:.0f}, the largest that was measured, it did not halve"
    if measured is not None:
        seen = f"half of its gain is lost at {measured:.0f}"
    elif floats(gain.measured, "measured")[0] <= 1:
        seen = "there is no gain to lose"
    expected = f"at {predicted:.0f}" if predicted is not None else f"beyond {max(SIZES)}"
    return f"{seen[0].upper()}{seen[1:]}; predicted: {expected}."


def lone_axes(story: QuantizationStory) -> Axes | Remark:
    """Draw the latency of a lone request."""
    column = "extra.single_e2e_p50_s"
    rows = story.rows(SCHEMES)
    if column not in rows.columns:
        return not_measured("The latency of a lone request")
    best = min(rows_of(rows), key=lambda row: number(row, column) or float("inf"))
    base = story.reference_row(SCHEMES)
    title = (
        f"Alone, {best[CANDIDATE]} answers first: {1e3 * best[column]:.0f} ms, "
        f"{story.unrounded} takes {1e3 * base[column]:.0f} ms"
    )
    name, shown = story.reference(), "latency.e2e_s.p50"  # a column that plots know in milliseconds
    own = rows[[CANDIDATE, "status"]].assign(**{shown: rows[column]})
    axes = bars_with_interval(own, shown, label=CANDIDATE, reference=name, title=title)
    axes.set_xlabel("Median time of a lone request (ms)   ← better")
    return axes


def lone_table(story: QuantizationStory) -> pd.DataFrame | Remark:
    """Return the parts of a lone request's latency."""
    import pandas as pd

    rows = story.rows(SCHEMES)
    if not set(LONE) <= set(rows.columns):
        return not_measured("The latency of a lone request")
    cells = {label: (floats(rows, column) * 1e3).round(2) for column, label in LONE.items()}
    return pd.DataFrame(cells, index=pd.Index(rows[CANDIDATE], name="scheme"))


def load_axes(story: QuantizationStory) -> Axes | Remark:
    """Draw the throughput under load against the unrounded weights."""
    rows = story.rows(SCHEMES)
    if f"{THROUGHPUT}.median" not in rows.columns:
        return not_measured("A comparison under load")
    named = rows.assign(**{f"{THROUGHPUT}.reference": story.unrounded})
    metric = THROUGHPUT.removeprefix("comparison.")
    return ratio_forest(named, metric, label=CANDIDATE, title=_load_title(story))


def _load_title(story: QuantizationStory) -> str:
    rows = [r for r in rows_of(story.rows(SCHEMES)) if number(r, f"{THROUGHPUT}.median")]
    best = max(rows, key=lambda row: row[f"{THROUGHPUT}.median"])
    verdicts = [str(row[f"{THROUGHPUT}.verdict"]) for row in rows]
    words = {"better": "faster", "worse": "slower", "undecided": "undecided"}
    counts = [f"{verdicts.count(v)} {word}" for v, word in words.items() if v in verdicts]
    return (
        f"Throughput against {story.unrounded}: {', '.join(counts)}; most with {best[CANDIDATE]}, "
        f"{best[f'{THROUGHPUT}.median']:.2f}x"
    )


def check(story: QuantizationStory) -> None:
    """Assert what the section on speed claims.

    Raises:
        AssertionError: A claim does not hold for these results.
    """
    for gain in gains(story).values():
        assert (floats(gain.measured, "measured") > 0).all(), "every step took time"
