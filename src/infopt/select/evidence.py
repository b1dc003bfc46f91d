"""The measured numbers that a recommendation shows."""

from __future__ import annotations

from infopt.results.metrics import energy_origin, metric_of
from infopt.select.energy_order import ENERGY_SOURCE, rests_on_model
from infopt.select.objectives import Objective
from infopt.select.recommendation import Evidence
from infopt.select.rows import Row, interval, number, text

SHOWN = (
    "slo.goodput_requests_per_s",
    "slo.goodput_share",
    "throughput.output_tokens_per_s",
    "throughput.requests_per_s",
    "latency.ttft_s.p50",
    "latency.ttft_s.p90",
    "latency.ttft_s.p99",
    "latency.tpot_s.p50",
    "latency.tpot_s.p90",
    "latency.tpot_s.p99",
    "latency.itl_s.p99",
    "latency.e2e_s.p50",
    "latency.e2e_s.p99",
    "quality.kl_mean",
    "quality.top1_agreement",
    "quality.perplexity_ratio.docs.ratio",
    "quality.perplexity_ratio.code.ratio",
    "memory.engine_bytes",
    "memory.peak_rss_bytes",
    "memory.kv_waste_share",
    "energy.j_per_token",
    "cost.per_million_output_tokens",
    "cost.per_request",
    "cost.per_machine_hour",
)


def evidence_of(row: Row, objective: Objective) -> tuple[Evidence, ...]:
    """Return the main measured numbers of a run in display units, the objective first.

    Args:
        row: A row of ``filter_runs``.
        objective: What was optimised.
    """
    columns = [objective.column, *(c for c in SHOWN if c != objective.column)]
    columns += [c for c in row if c.startswith("quality.tasks.") and c.endswith(".score")]
    found = [_evidence(row, column) for column in columns]
    ratio = _paired_evidence(row, objective)
    return tuple(e for e in [*found[:1], ratio, *found[1:]] if e is not None)


def _evidence(row: Row, column: str) -> Evidence | None:
    value, metric = number(row, column), metric_of(column)
    if value is None:
        return None
    scale = metric.display_scale
    low, high = interval(row, column) or (None, None)
    return Evidence(
        column,
        metric.label + _origin(row, column),
        _rounded(value * scale),
        None if low is None else _rounded(low * scale),
        None if high is None else _rounded(high * scale),
        metric.display_unit.replace("currency", text(row, "cost.currency") or "currency"),
    )


def _origin(row: Row, column: str) -> str:
    """Return what is said behind the label of an energy, or of a cost that one is a part of."""
    origin = "derived" if rests_on_model(row, column) else None
    if column.startswith("energy."):
        origin = energy_origin(text(row, ENERGY_SOURCE), number(row, "energy.interval_s"))
    return f" ({origin})" if origin else ""


def _paired_evidence(row: Row, objective: Objective) -> Evidence | None:
    column = f"comparison.{objective.paired}.median"
    value, reference = number(row, column), row.get(f"comparison.{objective.paired}.reference")
    if objective.paired is None or value is None:
        return None
    low, high = interval(row, column) or (None, None)
    label = f"{metric_of(objective.paired).label} against {reference}, paired"
    return Evidence(column, label, _rounded(value), low, high, "x")


def _rounded(value: float) -> float:
    """Keep five significant digits: more would be noise in a file that people read."""
    return float(f"{value:.5g}")
