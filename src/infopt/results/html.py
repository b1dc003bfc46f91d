"""How a record looks in a notebook."""

from __future__ import annotations

import html
import math
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from infopt.results.metrics import energy_origin, metric_of

if TYPE_CHECKING:
    from infopt.results.record import RunRecord

_SPARE_DIGITS = 1.65  # of the interval's width: it is shown with one or two significant digits
_MAX_DECIMALS = 6
_MAX_RATIO_DECIMALS = 4

_HEADLINES = (
    "throughput.output_tokens_per_s",
    "slo.goodput_requests_per_s",
    "latency.ttft_s.p50",
    "latency.ttft_s.p99",
    "latency.tpot_s.p50",
    "latency.e2e_s.p50",
    "quality.kl_mean",
    "quality.top1_agreement",
    "quality.perplexity.docs",
    "quality.perplexity.code",
    "memory.weights_bytes",
    "memory.peak_rss_bytes",
    "memory.kv_waste_share",
    "energy.j_per_token",
    "roofline.mbu",
    "roofline.mfu",
)


def summary_rows(record: RunRecord) -> list[tuple[str, str]]:
    """Return the main numbers of a record as (label, value with unit and interval)."""
    rows = [("Status", record.status), ("Started", record.started)]
    if record.failure is not None:
        rows.append((str(record.failure["type"]), str(record.failure["message"])))
        if record.failure.get("remedy"):
            rows.append(("Remedy", str(record.failure["remedy"])))
        return rows
    rows += _number_rows(record)
    rows += _comparison_rows(record)
    for section in ("energy", "cost"):
        reason = getattr(record, section).get("reason")
        if reason:
            rows.append((section.capitalize(), f"not given: {reason}"))
    return rows


def record_html(record: RunRecord) -> str:
    """Return a small table with the main numbers and the configuration folded below."""
    rows = "".join(
        f"<tr><th style='text-align:left'>{html.escape(label)}</th>"
        f"<td style='text-align:left'>{html.escape(value)}</td></tr>"
        for label, value in summary_rows(record)
    )
    options = "\n".join(f"{k}: {v}" for k, v in (record.config or {}).items())
    return (
        f"<div><b>{html.escape(record.run)}</b><table>{rows}</table>"
        f"<details><summary>Configuration</summary><pre>{html.escape(options)}</pre></details></div>"
    )


def format_value(value: float, digits: int = 4) -> str:
    """Return a number with ``digits`` significant digits and no exponent in the usual range."""
    if value != 0 and not 1e-4 <= abs(value) < 1e7:
        return f"{value:.{digits - 1}e}"
    text = f"{value:.{digits}g}"
    if "e" not in text:
        return text
    return f"{value:.0f}" if abs(value) >= 1 else f"{value:.{digits + 3}f}"


def format_interval(value: float, low: float, high: float) -> str:
    """Return ``1.36 [1.34, 1.40]``, with as many decimals as the interval leaves certain.

    An interval without width is a counted or repeated number: it stands alone.

    Args:
        value: The estimate.
        low: Lower end of its interval.
        high: Upper end.
    """
    if not low < high:
        return format_value(value, 3)
    decimals = max(math.floor(_SPARE_DIGITS - math.log10(high - low)), 0)
    if value:
        decimals = max(decimals, 1 - math.floor(math.log10(abs(value))))  # two digits at least
    if decimals > _MAX_DECIMALS:
        return f"{format_value(value, 3)} [{format_value(low, 3)}, {format_value(high, 3)}]"
    return f"{value:.{decimals}f} [{low:.{decimals}f}, {high:.{decimals}f}]"


def format_ratio(value: float, low: float, high: float) -> str:
    """Return ``1.36x [1.34, 1.40]``; an end that is not 1 is not rounded to it.

    Args:
        value: A ratio.
        low: Lower end of its interval; equal to the upper one for a single pair.
        high: Upper end.
    """
    if not low < high:
        return f"{format_value(value, 3)}x"
    decimals = 2
    while decimals < _MAX_RATIO_DECIMALS and any(
        abs(end) < 10.0 ** (1 - decimals) or (end != 1 and round(end, decimals) == 1)
        for end in (low, high)
    ):
        decimals += 1
    return f"{value:.{decimals}f}x [{low:.{decimals}f}, {high:.{decimals}f}]"


def _number_rows(record: RunRecord) -> Iterator[tuple[str, str]]:
    intervals = record.intervals or {}
    for column in _HEADLINES:
        value = _lookup(record, column)
        if value is None:
            continue
        metric = metric_of(column)
        value *= metric.display_scale
        text = format_value(value, 3)
        if column in intervals:
            low, high = (intervals[column][end] * metric.display_scale for end in ("low", "high"))
            text = format_interval(value, low, high)
        label = metric.label
        if column.startswith("energy."):
            label = ", ".join(filter(None, [label, _origin(record)]))
            text += _range_text(record)
        yield label, f"{text} {metric.display_unit}".strip()


def _origin(record: RunRecord) -> str | None:
    return energy_origin(record.energy.get("source"), record.energy.get("interval_s"))


def _range_text(record: RunRecord) -> str:
    """Return the ends of a derived energy."""
    if not record.energy.get("derived"):
        return ""
    ends = (format_value(record.energy[f"j_per_token_{end}"], 2) for end in ("low", "high"))
    return f" (range of its constants {' to '.join(ends)})"


def _comparison_rows(record: RunRecord) -> Iterator[tuple[str, str]]:
    for name, ratio in (record.comparison or {}).items():
        yield (
            f"{metric_of(name).label} vs {ratio['reference']}",
            f"{format_ratio(ratio['median'], ratio['low'], ratio['high'])}, "
            f"{ratio['num_pairs']} pairs: {ratio['verdict']}",
        )


def _lookup(record: RunRecord, column: str) -> float | None:
    section, *path = column.split(".")
    value: Any = getattr(record, section)
    for key in path:
        value = value.get(key) if value is not None else None
    return value
