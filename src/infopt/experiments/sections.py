"""Turns the runs of an arm into the sections of a record."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from infopt.bench.latency import RequestTiming, summarize_latency
from infopt.bench.load_result import LoadResult
from infopt.bench.request_samples import samples_of_requests
from infopt.bench.roofline import MachinePeaks, roofline_point
from infopt.bench.slo import SLO, evaluate_slo
from infopt.bench.stats import bootstrap_interval, paired_ratio
from infopt.bench.step_cost import StepCost, step_cost
from infopt.engine.stats import StepStats
from infopt.experiments.arms import HIGHER_IS_BETTER, figures
from infopt.experiments.energy import energy_section
from infopt.experiments.machine import precision_of
from infopt.hardware import peak_memory_bytes
from infopt.llm import LLM
from infopt.models.fallback.config import TransformersConfig

Sections = dict[str, Any]


def load_sections(
    llm: LLM, results: Sequence[LoadResult], slo: SLO | None, slo_name: str, peaks: MachinePeaks
) -> Sections:
    """Return everything that can be read off load runs.

    Args:
        llm: What ran.
        results: Its runs, warm-up excluded; requests of all of them are one sample.
        slo: Objective to judge by; None for no such section.
        slo_name: Its name.
        peaks: The machine's limits.
    """
    steps = [s for r in results for s in r.step_log]
    return {
        **traffic_sections(results, slo, slo_name),
        "memory": memory_section(llm, steps),
        "roofline": roofline_section(llm, steps, peaks),
        "ops": ops_section(llm),
        "extra": step_figures(llm, steps, results),
    }


def traffic_sections(results: Sequence[LoadResult], slo: SLO | None, slo_name: str) -> Sections:
    """Return what the answers alone say, wherever they were computed.

    Args:
        results: Runs, warm-up excluded; requests of all of them are one sample.
        slo: Objective to judge by; None for no such section.
        slo_name: Its name.
    """
    timings = [t for r in results for t in r.timings]
    seconds = sum(r.duration_s for r in results)
    per_run = [figures(r, slo) for r in results]
    names = [n for n in HIGHER_IS_BETTER if all(n in f for f in per_run)]
    return {
        "latency": summarize_latency(timings).to_dict(),
        "throughput": _throughput(results, seconds),
        "slo": _slo_section(slo, slo_name, timings, seconds),
        "energy": energy_section(results),
        "samples": {name: [f[name] for f in per_run] for name in names}
        | (samples_of_requests(results) if slo else {}),
        "intervals": {
            _COLUMN[n]: bootstrap_interval([f[n] for f in per_run]).to_dict() for n in names
        },
    }


def _slo_section(
    slo: SLO | None, name: str, timings: Sequence[RequestTiming], seconds: float
) -> Sections | None:
    if slo is None:
        return None
    report = evaluate_slo(slo, timings, seconds).to_dict()
    return {"name": name, "limits": slo.to_dict(), **report}


_COLUMN = {
    "output_tokens_per_s": "throughput.output_tokens_per_s",
    "goodput_requests_per_s": "slo.goodput_requests_per_s",
    "ttft_s": "latency.ttft_s.p50",
    "tpot_s": "latency.tpot_s.p50",
    "itl_s": "latency.itl_s.p50",
    "e2e_s": "latency.e2e_s.p50",
    "j_per_token": "energy.j_per_token",
}
"""Number of a run -> column of the record that its interval belongs to."""


def comparison_section(
    reference: Sequence[LoadResult],
    candidate: Sequence[LoadResult],
    slo: SLO | None,
    reference_slug: str,
) -> Sections:
    """Return the paired ratios of all numbers that every run has."""
    first, second = [[figures(r, slo) for r in arm] for arm in (reference, candidate)]
    out = {}
    for name, higher in HIGHER_IS_BETTER.items():
        if not all(f.get(name, 0.0) > 0 for f in (*first, *second)):
            continue
        ratio = paired_ratio(
            [f[name] for f in first], [f[name] for f in second], higher_is_better=higher
        )
        out[name] = {**ratio.to_dict(), "reference": reference_slug}
    return out


def memory_section(llm: LLM, steps: Sequence[StepStats]) -> Sections:
    """Return sizes, the highest number of pages, and the slots of pages that hold nothing."""
    memory = llm.stats()["memory"]
    slots = sum(s.num_pages_used for s in steps) * llm.config.block_size
    stored = sum(s.num_tokens_in_pages for s in steps)
    return {
        **memory,
        "peak_rss_bytes": peak_memory_bytes(),
        "peak_pages": max((s.num_pages_used for s in steps), default=None),
        "kv_waste_share": max(1 - stored / slots, 0.0) if slots else None,
    }


def roofline_section(llm: LLM, steps: Sequence[StepStats], peaks: MachinePeaks) -> Sections | None:
    """Return the counted work of all steps against the machine.

    Work inside transformers' modules is not counted: None for models that run there.
    """
    config = llm.model_config
    if not steps or isinstance(config, TransformersConfig):
        return None
    precision = precision_of(llm)
    cost = sum((step_cost(s, config, precision) for s in steps), StepCost())
    point = roofline_point(cost, sum(s.duration_s for s in steps), peaks)
    return {
        "bytes": cost.num_bytes,
        "weight_bytes": cost.weight_bytes + cost.embedding_bytes,
        "kv_bytes": cost.kv_bytes,
        "flops": cost.flops,
        "predicted_s": point.predicted_s,
        "measured_s": point.measured_s,
        "regime": point.regime,
        "mbu": point.mbu,
        "mfu": point.mfu,
        "bandwidth_bytes_per_s": peaks.bytes_per_s,
        "flops_per_s": peaks.flops_per_s,
    }


def ops_section(llm: LLM) -> Sections:
    """Return which kernel ran for each op, and whether decode steps were replayed."""
    stats = llm.stats()
    return {
        "backends": stats["ops"],
        "batch_invariant": stats["batch_invariant"],
        "cuda_graphs": {key: stats["cuda_graphs"][key] for key in ("state", "reason")},
    }


def step_figures(llm: LLM, steps: Sequence[StepStats], results: Sequence[LoadResult]) -> Sections:
    """Return what the steps say about scheduling."""
    records = [r for result in results for r in result.records]
    prompt = sum(len(r.request.prompt_token_ids) for r in records)
    cached = sum(r.output.num_cached_tokens for r in records if r.output)
    computed = sum(s.num_tokens for s in steps)
    return {
        "num_steps": len(steps),
        "num_preemptions": sum(s.num_preemptions for s in steps),
        "mean_seqs_per_step": sum(s.num_seqs for s in steps) / len(steps) if steps else None,
        "mean_tokens_per_step": computed / len(steps) if steps else None,
        "padding_share": sum(s.num_padding_tokens for s in steps) / computed if computed else None,
        "prefix_hit_share": cached / prompt if prompt else None,
        "num_threads": llm.stats()["num_threads"],
    }


def _throughput(results: Sequence[LoadResult], seconds: float) -> Sections:
    records = [r for result in results for r in result.records]
    num_completed = sum(r.status == "completed" for r in records)
    num_output = sum(r.num_output_tokens for r in records)
    num_prompt = sum(len(r.request.prompt_token_ids) for r in records)
    return {
        "output_tokens_per_s": num_output / seconds,
        "prompt_tokens_per_s": num_prompt / seconds,
        "requests_per_s": num_completed / seconds,
        "offered_requests_per_s": results[0].offered_rate_per_s,
        "num_requests": len(records),
        "num_completed": num_completed,
        "num_output_tokens": num_output,
        "num_prompt_tokens": num_prompt,
        "measured_s": seconds,
    }
