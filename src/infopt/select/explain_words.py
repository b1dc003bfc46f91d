"""The sentences of ``infopt.select.explain``, and the ratios they speak of."""

from __future__ import annotations

import math
from dataclasses import dataclass

from infopt.results.html import format_value
from infopt.select.rows import Row, number, text

EQUAL_WITHIN = 1.02
"""Counted amounts that differ by less are called equal."""

PAIRED = "comparison.output_tokens_per_s"

_REGIMES = {
    "weight-bandwidth": "reading weights",
    "kv-bandwidth": "reading keys and values",
    "compute": "arithmetic",
    "overhead": "overhead outside the counted work",
}
_WORK = (
    ("weight bytes", "roofline.weight_bytes"),
    ("KV bytes", "roofline.kv_bytes"),
    ("FLOPs", "roofline.flops"),
)


def reference_of(row: Row) -> str | None:
    """Return ``stage/slug`` of the run that this one was compared with, or None."""
    columns = (c for c in row if c.startswith("comparison.") and c.endswith(".reference"))
    names = [name for name in (text(row, c) for c in columns) if name]
    if not names:
        return None
    return names[0] if "/" in names[0] else f"{row['stage']}/{names[0]}"


@dataclass(frozen=True, slots=True)
class Ratios:
    """Speed over the reference's: measured (with its interval) and predicted."""

    measured: float | None = None
    low: float | None = None
    high: float | None = None
    verdict: str | None = None
    is_paired: bool = False
    predicted: float | None = None

    @classmethod
    def of(cls, row: Row, reference: Row | None) -> Ratios:
        """Read the ratios of a row; all None without a reference."""
        if reference is None:
            return cls()
        predicted = _quotient(reference, row, "roofline.predicted_s")
        median = number(row, f"{PAIRED}.median")
        # At a given load, throughput is what was offered: there the steps' own times count.
        if median is None or number(row, "throughput.offered_requests_per_s") is not None:
            return cls(_quotient(reference, row, "roofline.measured_s"), predicted=predicted)
        low, high = (number(row, f"{PAIRED}.{end}") for end in ("low", "high"))
        return cls(median, low, high, text(row, f"{PAIRED}.verdict"), True, predicted)


def own_sentences(row: Row, slowdown: float | None) -> list[str]:
    """Return the sentences about a run alone."""
    if row.get("status") == "failed":
        return [f"The run failed: {text(row, 'failure.message')}"]
    num_bytes, flops = number(row, "roofline.bytes"), number(row, "roofline.flops")
    if num_bytes is None or flops is None:
        return ["Its work was not counted, so there is no prediction."]
    work = f"Its steps had to move {_short(num_bytes, 'B')} and compute {_short(flops, 'FLOP')}"
    if slowdown is None:
        return [f"{work}; the machine's limits are not known."]
    predicted, measured = (number(row, f"roofline.{k}_s") for k in ("predicted", "measured"))
    assert predicted is not None
    assert measured is not None
    times = (
        f"{work}, which takes {format_value(predicted, 3)} s at least; they took "
        f"{format_value(measured, 3)} s, {format_value(slowdown, 3)} times that."
    )
    regime = text(row, "roofline.regime")
    return [times, f"The limit is {_REGIMES[regime]} ({regime})."] if regime else [times]


def reference_sentences(
    row: Row, reference: Row | None, ratios: Ratios, status: str, within: float
) -> list[str]:
    """Return the sentences about the run and its reference."""
    name = reference_of(row)
    if name is None:
        return ["It was compared with nothing: it is a reference, or ran alone."]
    if reference is None:
        return [f"The record of its reference {name} is not there."]
    if ratios.measured is None or ratios.predicted is None:
        return [
            f"The work of this run or of {name} was not counted: their difference is unexplained."
        ]
    sentences = [_measured_sentence(name, ratios), _work_sentence(row, reference, ratios)]
    if status == "unexplained":
        sentences.append(_rest(row, reference, ratios, within))
    return sentences


def _measured_sentence(name: str, ratios: Ratios) -> str:
    assert ratios.measured is not None
    ratio = format_value(ratios.measured, 3)
    if not ratios.is_paired:
        return f"Its steps were {ratio} times as fast as those of {name} (not measured in pairs)."
    word = {"better": "It won", "worse": "It lost"}.get(ratios.verdict or "", "Undecided")
    ends = ""
    if ratios.low is not None and ratios.high is not None:
        ends = f" [{format_value(ratios.low, 3)}, {format_value(ratios.high, 3)}]"
    return f"{word} against {name}: {ratio}{ends} times its output throughput."


def _work_sentence(row: Row, reference: Row, ratios: Ratios) -> str:
    assert ratios.predicted is not None
    parts = []
    for label, column in _WORK:
        ratio = _quotient(row, reference, column)
        if ratio is not None and not is_equal(ratio):
            parts.append(f"{format_value(ratio, 3)} times the {label}")
    if not parts:
        return "The counted work is equal, so it predicts no difference."
    # Steps read all weights once, so their number is what changed where the format did not.
    steps = [number(r, "extra.num_steps") for r in (row, reference)]
    is_known = steps[0] is not None and steps[1] is not None and steps[0] != steps[1]
    tail = f" in {steps[0]:.0f} instead of {steps[1]:.0f} steps" if is_known else ""
    predicted = format_value(ratios.predicted, 3)
    return f"It takes {_joined(parts)}{tail}: that predicts {predicted} times the speed."


def _rest(row: Row, reference: Row, ratios: Ratios, within: float) -> str:
    assert ratios.measured is not None
    assert ratios.predicted is not None
    rest = format_value(ratios.measured / ratios.predicted, 3)
    shares = [
        format_value(100 * predicted / measured, 2)
        for r in (row, reference)
        if (predicted := number(r, "roofline.predicted_s"))
        and (measured := number(r, "roofline.measured_s"))
    ]
    reached = (
        f"; it reached {shares[0]} % of its bound, the reference {shares[1]} %"
        if len(shares) == 2
        else ""
    )
    return (
        f"Unexplained: measurement and prediction differ by x {rest} (explained is within "
        f"x {format_value(within, 3)} and on the same side of 1){reached}."
    )


def _quotient(numerator: Row, denominator: Row, column: str) -> float | None:
    above, below = number(numerator, column), number(denominator, column)
    return above / below if above and below and above > 0 and below > 0 else None


def is_equal(ratio: float) -> bool:
    """Tell whether two counted amounts are the same for all that matters here."""
    return abs(math.log(ratio)) <= math.log(EQUAL_WITHIN)


def _joined(parts: list[str]) -> str:
    return parts[0] if len(parts) == 1 else f"{', '.join(parts[:-1])} and {parts[-1]}"


def _short(value: float, unit: str) -> str:
    for factor, prefix in ((1e12, "T"), (1e9, "G"), (1e6, "M")):
        if value >= factor:
            return f"{format_value(value / factor, 3)} {prefix}{unit}"
    return f"{format_value(value, 3)} {unit}"
