"""A `ServeReport` for people."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.table import Table

from infopt.cli.serve_load import ServeReport

_LATENCIES = {"TTFT": "ttft_s", "TPOT": "tpot_s", "E2E": "e2e_s"}


def load_table(report: ServeReport) -> Table:
    """Return one row per rate."""
    table = Table(
        title=f"{report.target.model} at {report.target.url}",
        title_justify="left",
        caption="Requests/s; latencies in ms from the scheduled arrival, p50 / p90; - where the "
        "sample is too small. Goodput: requests/s within the objective, and their share of all.",
        caption_justify="left",
    )
    for heading in ("offered", "achieved", "goodput", *_LATENCIES, "tokens/s", "failed"):
        table.add_column(heading, justify="right")
    for _, result in sorted(report.results.items()):
        table.add_row(*_cells(result.summary(report.plan.slo)))
    return table


def facts(report: ServeReport) -> list[str]:
    """Return the objective, what was sent, and the saturation point."""
    plan = report.plan
    client = next(iter(report.results.values())).client_figures()
    limits = ", ".join(f"{name} <= {limit:g}" for name, limit in plan.slo.limits.items())
    lines = [
        f"objective: {limits}",
        f"prompts: {client['prompt_form']}, tokenizer: {client['tokenizer']}; "
        f"output tokens asked {client['num_asked_tokens']}, got {client['num_got_tokens']}",
    ]
    if report.sweep is not None:
        lines.append(f"saturation: {report.sweep.saturation.sentence()}")
    return lines


def remarks(report: ServeReport) -> list[str]:
    """Return what a reader of the figures must know, and why requests failed."""
    found = []
    for rate, result in sorted(report.results.items()):
        name = f"{rate:g} requests/s: " if len(report.results) > 1 else ""
        found += [f"{name}{warning}" for warning in result.warnings]
        errors = result.summary()["errors"]
        if errors:
            first = next(r.error for r in result.records if r.error)
            counts = ", ".join(f"{count} x {kind}" for kind, count in errors.items())
            found.append(f"{name}failed: {counts}; the first: {first}")
    if report.sweep is not None and report.sweep.skipped_per_s:
        rates = ", ".join(f"{rate:g}" for rate in report.sweep.skipped_per_s)
        found.append(f"not measured, since the load was too much before: {rates} requests/s")
    return found


def _cells(summary: Mapping[str, Any]) -> list[str]:
    goodput, latency = summary["goodput"], summary["latency"]
    share = goodput["goodput_share"]
    return [
        _number(summary["offered_rate_per_s"]),
        _number(summary["achieved_rate_per_s"]),
        f"{_number(goodput['goodput_requests_per_s'])} ({share:.0%})",
        *(_milliseconds(latency[key]) for key in _LATENCIES.values()),
        _number(summary["throughput_tokens_per_s"]),
        str(summary["num_requests"] - summary["num_completed"]),
    ]


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.3g}"


def _milliseconds(percentiles: Mapping[str, Any]) -> str:
    values = (percentiles["p50"], percentiles["p90"])
    return " / ".join("-" if value is None else f"{value * 1000:.0f}" for value in values)
