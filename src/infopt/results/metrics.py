"""The numbers of a record by column name: label, unit and which direction is better.

Tables, plots and selection read this one catalogue. Values are stored in SI units; plots and tables
show them multiplied by ``display_scale`` in ``display_unit``.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

Better = Literal["lower", "higher"]

MIB = 2**20


@dataclass(frozen=True, slots=True)
class Metric:
    """How one column is named, scaled and judged.

    Attributes:
        column: Dotted column name of ``load_results``.
        label: Name for axes and tables, without unit.
        display_unit: Unit of the displayed value ("" for a pure number).
        better: Which direction is better; None where neither is.
        display_scale: Factor from the stored to the displayed value.
        interval: Columns of its 95 % interval, where they do not follow from the name.
    """

    column: str
    label: str
    display_unit: str = ""
    better: Better | None = None
    display_scale: float = 1.0
    interval: tuple[str, str] | None = None

    @property
    def axis_label(self) -> str:
        """Label with unit, as in ``TTFT p50 (ms)``."""
        return f"{self.label} ({self.display_unit})" if self.display_unit else self.label


def metric_of(column: str) -> Metric:
    """Return the metric of a column; for an unknown one, label and unit come from its name."""
    return METRICS.get(column) or _derived(column)


def energy_origin(source: object, interval_s: object = None) -> str | None:
    """Return what is said beside an energy that is not the difference of two counters, else None.

    Args:
        source: The record's ``energy.source``.
        interval_s: Distance of the samples, where power was integrated.
    """
    if source == "modelled":
        return "derived"
    if source != "power-integral":
        return None
    is_known = isinstance(interval_s, float) and interval_s > 0
    return f"power sampled every {interval_s:g} s" if is_known else "power sampled"


def interval_columns(column: str, columns: Iterable[str]) -> tuple[str, str] | None:
    """Return the columns with the 95 % interval of ``column``, or None where there is none.

    Args:
        column: A column with estimates.
        columns: The columns of the table.
    """
    columns = set(columns)
    stem = re.sub(r"(score|median|ratio|token_perplexity)$", "", column)
    derived = stem if stem != column else f"{column}."
    candidates = [(f"{p}low", f"{p}high") for p in (f"intervals.{column}.", derived)]
    known = metric_of(column).interval
    for low, high in [*candidates, known] if known else candidates:
        if {low, high} <= columns:
            return low, high
    return None


def _latency_metrics() -> list[Metric]:
    names = {
        "ttft_s": "TTFT",
        "tpot_s": "TPOT",
        "itl_s": "ITL",
        "e2e_s": "End-to-end latency",
        "queue_s": "Queueing time",
    }
    percentiles = [
        Metric(f"latency.{name}.{key}", f"{label} {key}", "ms", "lower", 1e3)
        for name, label in names.items()
        for key in ("p50", "p90", "p99", "mean")
    ]
    attained = [
        Metric(f"slo.attained.{name}", f"{label} at its percentile", "ms", "lower", 1e3)
        for name, label in names.items()
    ]
    return percentiles + attained


def _perplexity_metrics(kind: str) -> list[Metric]:
    details = f"quality.perplexity_details.{kind}"
    return [
        Metric(
            f"quality.perplexity.{kind}",
            f"Perplexity on {kind}",
            better="lower",
            interval=(f"{details}.low", f"{details}.high"),
        ),
        Metric(
            f"quality.perplexity_ratio.{kind}.ratio",
            f"Perplexity on {kind}",
            "x reference",
            "lower",
        ),
    ]


def _metrics() -> list[Metric]:
    return [
        *_latency_metrics(),
        Metric("throughput.output_tokens_per_s", "Output throughput", "tokens/s", "higher"),
        Metric("throughput.prompt_tokens_per_s", "Prompt throughput", "tokens/s", "higher"),
        Metric("throughput.requests_per_s", "Request throughput", "requests/s", "higher"),
        Metric("throughput.offered_requests_per_s", "Offered load", "requests/s"),
        Metric("slo.goodput_requests_per_s", "Goodput", "requests/s", "higher"),
        Metric("slo.goodput_share", "Requests within the SLO", "%", "higher", 100),
        Metric(
            "quality.kl_mean",
            "Mean KL to the reference",
            "nats",
            "lower",
            interval=("quality.fidelity_details.kl_low", "quality.fidelity_details.kl_high"),
        ),
        Metric("quality.top1_agreement", "Top-1 agreement", "%", "higher", 100),
        *_perplexity_metrics("docs"),
        *_perplexity_metrics("code"),
        Metric("quality.perplexity_ratio", "Worst perplexity ratio", "x reference", "lower"),
        Metric("memory.weights_bytes", "Weights", "MiB", "lower", 1 / MIB),
        Metric("memory.engine_bytes", "Weights and KV pool", "MiB", "lower", 1 / MIB),
        Metric("memory.kv_bytes_per_token", "KV per token", "KiB", "lower", 1 / 1024),
        Metric("extra.kv_bytes_kept_per_token", "KV kept per token", "KiB", "lower", 1 / 1024),
        Metric("memory.kv_pool_bytes", "KV pool", "MiB", "lower", 1 / MIB),
        Metric("memory.peak_rss_bytes", "Peak memory", "MiB", "lower", 1 / MIB),
        Metric("memory.freed_bytes", "Freed KV", "MiB", "higher", 1 / MIB),
        Metric("memory.kv_waste_share", "Wasted KV slots", "%", "lower", 100),
        Metric("memory.peak_pages", "Peak pages", "pages", "lower"),
        Metric("energy.j_per_token", "Energy", "J/token", "lower"),
        Metric("energy.j_per_request", "Energy", "J/request", "lower"),
        Metric("energy.prefill_j_per_prompt_token", "Energy of prompts", "J/token", "lower"),
        Metric("energy.decode_j_per_token", "Energy of decoding", "J/token", "lower"),
        Metric("energy.joules", "Energy", "J", "lower"),
        Metric("energy.watts", "Power", "W", "lower"),
        Metric("energy.idle_watts", "Idle power", "W", "lower"),
        Metric("cost.per_million_output_tokens", "Cost", "currency/M tokens", "lower"),
        Metric("cost.per_request", "Cost", "currency/request", "lower"),
        Metric("cost.per_machine_hour", "Cost", "currency/hour", "lower"),
        Metric("extra.cold_start_s", "Cold start", "s", "lower"),
        Metric("cold_start_s", "Cold start", "s", "lower"),
        Metric("roofline.mbu", "Memory-bandwidth use", "%", "higher", 100),
        Metric("roofline.mfu", "FLOP/s use", "%", "higher", 100),
        Metric("config.max_num_seqs", "Sequences at once (max_num_seqs)"),
        Metric("config.max_num_batched_tokens", "Tokens per step (max_num_batched_tokens)"),
        Metric("config.block_size", "Page size", "tokens"),
        Metric("config.num_threads", "Threads"),
        Metric("duration_s", "Duration", "s", "lower"),
        Metric("output_tokens_per_s", "Output throughput", "", "higher"),
        Metric("prompt_tokens_per_s", "Prompt throughput", "", "higher"),
        Metric("requests_per_s", "Request throughput", "", "higher"),
        Metric("goodput_requests_per_s", "Goodput", "", "higher"),
        Metric("ttft_s", "TTFT", "ms", "lower", 1e3),
        Metric("tpot_s", "TPOT", "ms", "lower", 1e3),
        Metric("itl_s", "ITL", "ms", "lower", 1e3),
        Metric("e2e_s", "End-to-end latency", "ms", "lower", 1e3),
        Metric("queue_s", "Queueing time", "ms", "lower", 1e3),
        Metric("j_per_token", "Energy per token", "J/token", "lower"),
    ]


METRICS = {metric.column: metric for metric in _metrics()}

# Longest suffix first: "_per_s" ends in "_s" as well.
_SUFFIX_UNITS = (
    ("_tokens_per_s", "tokens/s", 1.0),
    ("_requests_per_s", "requests/s", 1.0),
    ("_bytes_per_s", "GB/s", 1e-9),
    ("_per_s", "1/s", 1.0),
    ("_bytes", "MiB", 1 / MIB),
    ("_share", "%", 100.0),
    ("_s", "s", 1.0),
)


def _derived(column: str) -> Metric:
    if column.startswith("quality.tasks."):
        task = column.removeprefix("quality.tasks.").removesuffix(".score")
        return Metric(column, f"Score in {task.replace('_', ' ')}", "%", "higher", 100)
    name = column.rsplit(".", 1)[-1]
    for suffix, unit, scale in _SUFFIX_UNITS:
        if name.endswith(suffix):
            label = name.removesuffix(suffix).replace("_", " ") or column
            return Metric(column, label.capitalize(), unit, None, scale)
    return Metric(column, column.removeprefix("extra.").replace("_", " "))
