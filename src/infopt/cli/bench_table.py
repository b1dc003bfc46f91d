"""A `BenchReport` for people."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.markup import escape
from rich.table import Table

from infopt.bench.stats import MIN_PAIRS_FOR_VERDICT
from infopt.cli.bench_arms import BenchReport
from infopt.results.metrics import energy_origin

_VERDICT_STYLES = {"better": "green", "worse": "red", "undecided": "yellow"}
_LATENCIES = {"TTFT": "ttft_s", "TPOT": "tpot_s", "E2E": "e2e_s"}


def bench_table(report: BenchReport) -> Table:
    """Return one row per arm: throughput with interval, latencies, ratio to the first arm."""
    plan, is_paired = report.plan, len(report.records) > 1
    num_requests = len(next(iter(report.results.values()))[0].records)
    table = Table(
        title=f"{plan.workload['kind']}: {num_requests} requests, {plan.repeats} rounds",
        title_justify="left",
        caption="[low, high]: 95 % interval of the median round. Latencies in ms from the "
        "scheduled arrival, p50 / p90; - where the sample is too small.",
        caption_justify="left",
    )
    table.add_column("arm")
    for heading in ("output tokens/s", *_LATENCIES):
        table.add_column(heading, justify="right")
    if is_paired:
        table.add_column("ratio")
    for name, record in report.records.items():
        latency: Mapping[str, Any] = record.latency or {}
        cells = [f"[bold]{escape(name)}[/]", _rate_cell(report, name)]
        cells += [_ms_cell(latency[key]) for key in _LATENCIES.values()]
        table.add_row(*cells, *([_ratio_cell(report, name)] if is_paired else []))
    return table


def facts(report: BenchReport) -> list[str]:
    """Return, per arm, a line each on the objective, the machine's limits and energy."""
    lines = []
    for name, record in report.records.items():
        if record.slo is not None:
            lines.append(f"{escape(name)}: {_slo_text(record.slo)}")
        if record.roofline is not None:
            lines.append(f"{escape(name)}: {_roofline_text(record.roofline)}")
        lines.append(f"{escape(name)}: {_energy_text(record.energy)}")
    return lines


def remarks(report: BenchReport) -> list[str]:
    """Return what a reader of the figures must know, each remark once."""
    found = [
        f"{name}: {warning}"
        for name, results in report.results.items()
        for result in results
        for warning in result.warnings
    ]
    if len(report.records) > 1 and report.plan.repeats < MIN_PAIRS_FOR_VERDICT:
        found.append(
            f"{report.plan.repeats} pairs decide nothing; use --repeats {MIN_PAIRS_FOR_VERDICT}"
        )
    return list(dict.fromkeys(found))


def _rate_cell(report: BenchReport, name: str) -> str:
    interval = report.paired.interval(name)
    return f"{interval.estimate:.1f}\n{_range(interval.low, interval.high, 1)}"


def _ms_cell(percentiles: Mapping[str, Any]) -> str:
    values = (percentiles["p50"], percentiles["p90"])
    return " / ".join("-" if value is None else f"{value * 1000:.0f}" for value in values)


def _ratio_cell(report: BenchReport, name: str) -> str:
    ratio = report.paired.ratios.get(name)
    if ratio is None:
        return "reference"
    style = _VERDICT_STYLES[ratio.verdict]
    text = f"[{style}]{ratio.median:.3f} {ratio.verdict}[/]"
    return f"{text}\n{_range(ratio.low, ratio.high, 3)}"


def _range(low: float, high: float, digits: int) -> str:
    return escape(f"[{low:.{digits}f}, {high:.{digits}f}]")


def _slo_text(slo: Mapping[str, Any]) -> str:
    verdict = {True: "[green]met[/]", False: "[red]missed[/]", None: "[yellow]cannot tell[/]"}
    limits = ", ".join(
        f"{name} <= {limit:g}"
        for name, limit in slo["limits"].items()
        if limit is not None and name != "percentile"
    )
    return (
        f"objective {escape(slo['name'])} ({limits} at p{slo['limits']['percentile']:g}) "
        f"{verdict[slo['is_met']]}; {slo['num_met']} of {slo['num_requests']} requests within "
        "every limit"
    )


def _roofline_text(roofline: Mapping[str, Any]) -> str:
    return (
        f"{roofline['mbu']:.0%} of the memory bandwidth and {roofline['mfu']:.0%} of the FLOP/s "
        f"that this machine was measured to have; limited by {roofline['regime']}"
    )


def _energy_text(energy: Mapping[str, Any]) -> str:
    if energy["j_per_token"] is None:
        return f"no energy: {escape(str(energy['reason']))}"
    text = f"{energy['j_per_token']:.3g} J/token, {energy['j_per_request']:.3g} J/request"
    if not energy["derived"]:
        origin = energy_origin(energy["source"], energy.get("interval_s"))
        return f"{text}, measured by {energy['source']}" + (f" ({origin})" if origin else "")
    low, high = energy["j_per_token_low"], energy["j_per_token_high"]
    return f"{text}, derived from CPU time and counted bytes ({low:.2g} to {high:.2g} J/token)"
