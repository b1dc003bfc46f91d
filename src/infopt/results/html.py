"""How a record looks in a notebook."""

from __future__ import annotations

import html
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from infopt.results.metrics import metric_of

if TYPE_CHECKING:
    from infopt.results.record import RunRecord

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


def _number_rows(record: RunRecord) -> Iterator[tuple[str, str]]:
    intervals = record.intervals or {}
    for column in _HEADLINES:
        value = _lookup(record, column)
        if value is None:
            continue
        metric = metric_of(column)
        text = format_value(value * metric.display_scale)
        if column in intervals:
            ends = (intervals[column][end] * metric.display_scale for end in ("low", "high"))
            text += f" [{', '.join(format_value(end) for end in ends)}]"
        label = metric.label
        if column.startswith("energy.") and record.energy.get("derived"):
            label += ", derived"
            ends = (format_value(record.energy[f"j_per_token_{end}"]) for end in ("low", "high"))
            text += f" (range of its constants {' to '.join(ends)})"
        yield label, f"{text} {metric.display_unit}".strip()


def _comparison_rows(record: RunRecord) -> Iterator[tuple[str, str]]:
    for name, ratio in (record.comparison or {}).items():
        ends = f"[{format_value(ratio['low'], 3)}, {format_value(ratio['high'], 3)}]"
        yield (
            f"{metric_of(name).label} vs {ratio['reference']}",
            f"x {format_value(ratio['median'], 3)} {ends}, {ratio['num_pairs']} pairs: "
            f"{ratio['verdict']}",
        )


def _lookup(record: RunRecord, column: str) -> float | None:
    section, *path = column.split(".")
    value: Any = getattr(record, section)
    for key in path:
        value = value.get(key) if value is not None else None
    return value
