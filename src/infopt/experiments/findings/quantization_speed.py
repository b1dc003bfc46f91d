"""What each weight format gains: steps by batch size against the roofline, a lone request, load."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from infopt.bench.roofline import MachinePeaks, StepCost, predicted_seconds, roofline_point
from infopt.experiments.findings.missing import Remark, not_measured
from infopt.experiments.findings.quantization import (
    BITS,
    CANDIDATE,
    SCHEMES,
    QuantizationStory,
    weight_bytes,
)
from infopt.plotting import bars_with_interval, batch_gain
from infopt.plotting.data import floats
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
        return self.table[np.isfinite(floats(self.table, "measured"))]

    def fades_at(self, column: str) -> float | None:
        """Return the first size with less than half of the first size's gain above 1.

        None where it never does, or where there was no gain to lose.

        Args:
            column: ``measured`` or ``predicted``.
        """
        table = self.table[np.isfinite(floats(self.table, column))]
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
    predicted = [_predicted(story, name, table.index) for name in names]
    table["predicted"] = predicted[0] / predicted[1]
    return Gain(candidate, table.rename_axis("num_tokens").reset_index())


def _predicted(story: QuantizationStory, candidate: str, sizes: Sequence[float]) -> np.ndarray:
    """Return the least times of steps in seconds; bytes and FLOPs grow linearly with the batch."""
    curve = story.curve(SCHEMES, candidate, "decode_")
    x = floats(curve, "num_tokens")
    if len(x) < 2:
        return np.full(len(sizes), np.nan)
    at = np.asarray(sizes, dtype=float)
    moved, work = (np.polyval(np.polyfit(x, floats(curve, c), 1), at) for c in ("bytes", "flops"))
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
    return batch_gain(pd.concat(parts, ignore_index=True), reference=story.reference())


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
        interval = f"[{values['low']:.2f}, {values['high']:.2f}]"
        cells[f"{at}: measured"] = f"{values['measured']:.2f}x {interval}"
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
    return (
        f"{row['measured']:.2f}x at {row['num_tokens']:.0f} (the roofline allows "
        f"{row['predicted']:.2f}x)"
    )


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
    reference = story.reference()
    best = min(rows_of(rows), key=lambda row: number(row, column) or float("inf"))
    base = story.reference_row(SCHEMES)
    title = (
        f"Alone, {best[CANDIDATE]} answers first: {1e3 * best[column]:.0f} ms, {reference} takes "
        f"{1e3 * base[column]:.0f} ms"
    )
    axes = bars_with_interval(rows, column, label=CANDIDATE, reference=reference, title=title)
    axes.set_xlabel("Median time of a lone request (s)   ← better")
    return axes


def lone_table(story: QuantizationStory) -> pd.DataFrame | Remark:
    """Return the parts of a lone request's latency."""
    import pandas as pd

    rows = story.rows(SCHEMES)
    if not set(LONE) <= set(rows.columns):
        return not_measured("The latency of a lone request")
    cells = {label: (floats(rows, column) * 1e3).round(2) for column, label in LONE.items()}
    return pd.DataFrame(cells, index=pd.Index(rows[CANDIDATE], name="scheme"))


def memory_axes(story: QuantizationStory) -> Axes:
    """Draw the memory of the weights, as measured."""
    rows = story.rows(SCHEMES)
    names = {"label": CANDIDATE, "reference": story.reference()}
    return bars_with_interval(rows, "memory.weights_bytes", **names)


def memory_table(story: QuantizationStory) -> pd.DataFrame:
    """Return bits per weight, what lies in memory, and what a decode step reads of it."""
    import pandas as pd

    rows = story.rows(SCHEMES)
    held = floats(rows, "memory.weights_bytes") / 2**20
    base = story.reference_row(SCHEMES)
    curves = [story.curve(SCHEMES, str(name), "decode_") for name in rows[CANDIDATE]]
    read = [weight_bytes(curve) / 2**20 for curve in curves]
    table = {
        "bits per weight": floats(rows, BITS).round(2),
        "weights in memory (MiB)": held.round(1),
        "of the reference (%)": (100 * held * 2**20 / base["memory.weights_bytes"]).round(1),
        "read by a decode step (MiB)": np.round(read, 1),
        "peak memory of the process (MiB)": (floats(rows, "memory.peak_rss_bytes") / 2**20).round(),
        "path": list(rows["extra.quantization_path"]),
    }
    return pd.DataFrame(table, index=pd.Index(rows[CANDIDATE], name="scheme"))


def memory_sentence(story: QuantizationStory) -> str:
    """Say what the smallest format saves, and what it does not touch."""
    rows = rows_of(story.rows(SCHEMES))
    smallest = min(rows, key=lambda row: row["memory.weights_bytes"])
    base = story.reference_row(SCHEMES)
    share = smallest["memory.weights_bytes"] / base["memory.weights_bytes"]
    read = weight_bytes(story.curve(SCHEMES, str(smallest[CANDIDATE]), "decode_"))
    text = (
        f"`{smallest[CANDIDATE]}` is the smallest: {smallest['memory.weights_bytes'] / 2**20:.0f} "
        f"MiB of weights, {share:.0%} of the reference, at {smallest[BITS]:.3g} bits per weight."
    )
    if np.isfinite(read):
        rest = (smallest["memory.weights_bytes"] - read) / smallest["memory.weights_bytes"]
        text += (
            f" A step reads {read / 2**20:.0f} MiB of that; the other {rest:.0%} is mostly the "
            "embedding table, of which a step looks up a row per token."
        )
    return text


def check(story: QuantizationStory) -> None:
    """Assert what the sections on speed and memory claim.

    Raises:
        AssertionError: A claim does not hold for these results.
    """
    rows = rows_of(story.rows(SCHEMES))
    base = story.reference_row(SCHEMES)
    packed = [row for row in rows if row["extra.quantization_path"] == "packed"]
    for row in packed:
        smaller = row["memory.weights_bytes"] < base["memory.weights_bytes"]
        assert smaller, f"{row[CANDIDATE]} is packed, so it takes less memory"
    for gain in gains(story).values():
        assert (floats(gain.measured, "measured") > 0).all(), "every step took time"
