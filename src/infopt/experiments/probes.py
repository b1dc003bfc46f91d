"""Measurements beside the load runs: quality, latency of a lone request, single steps and ops."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from statistics import median
from typing import Any, Literal

from infopt.bench.latency import summarize_latency
from infopt.bench.op_times import BETWEEN, OpTimes, StepKind, time_ops
from infopt.bench.roofline import MachinePeaks, roofline_point
from infopt.bench.roofline_ops import OpRoofline, op_rooflines
from infopt.bench.stats import bootstrap_interval
from infopt.bench.step_cost import step_cost
from infopt.bench.workload_types import WorkloadRequest
from infopt.engine.stats import StepStats
from infopt.evals.reference_logits import ReferenceLogits
from infopt.evals.suite import run_suite
from infopt.experiments.arms import check_complete, serve
from infopt.experiments.machine import precision_of
from infopt.llm import LLM
from infopt.models.config import ModelConfig
from infopt.models.fallback.config import TransformersConfig

DECODE_BATCHES = (1, 2, 4, 8, 16, 32)
PREFILL_TOKENS = (16, 64, 256, 512)

logger = logging.getLogger(__name__)

OP_BATCHES = (1, 8, 32)
OP_CONTEXT_TOKENS = 128
"""Context of the decodes whose ops are timed, and length of the prefill."""

_PROMPT_TOKENS = 32
_NUM_DECODES = 7
_NUM_RUNS = 2


def quality(
    llm: LLM, tier: Literal["screen", "full"], reference: LLM | ReferenceLogits | None
) -> dict[str, Any]:
    """Return the quality section of a record; None as reference measures the reference itself."""
    return run_suite(llm, tier, reference=reference, progress=False).to_dict()


def lone_latency(llm: LLM, requests: Sequence[WorkloadRequest], repeats: int) -> dict[str, Any]:
    """Serve requests one at a time and return flat figures for ``extra``."""
    results = []
    for _ in range(repeats + 1):
        for request in requests:
            result = serve(llm, [request], "closed")
            check_complete(result, "one at a time")
            results.append(result)
    timings = [t for r in results[len(requests) :] for t in r.timings]
    summary = summarize_latency(timings)
    return {
        "single_ttft_p50_s": summary.ttft.p50,
        "single_tpot_p50_s": summary.tpot.p50,
        "single_e2e_p50_s": summary.e2e.p50,
        "single_num_requests": len(timings),
    }


def step_curve(llm: LLM, peaks: MachinePeaks) -> dict[str, list[float]]:
    """Time single steps by size; the rows of the lists belong together.

    Returns:
        ``decode_*``: one entry per batch size, a step that adds one token to each sequence.
        ``prefill_*``: one entry per prompt length, a step that reads a whole prompt.
        Empty for a model that transformers runs, whose work is not counted.
    """
    if isinstance(llm.model_config, TransformersConfig):
        logger.info("steps are not compared with the machine: transformers runs the model")
        return {}
    limits = llm.config
    batches = [n for n in DECODE_BATCHES if n <= limits.max_num_seqs]
    lengths = [n for n in PREFILL_TOKENS if n <= limits.max_num_batched_tokens]
    decode = [_steps(llm, n, _PROMPT_TOKENS, _is_decode(n)) for n in batches]
    prefill = [_steps(llm, 1, n, _is_prefill(n)) for n in lengths]
    return {
        **{f"decode_{key}": column for key, column in _columns(llm, decode, peaks).items()},
        **{f"prefill_{key}": column for key, column in _columns(llm, prefill, peaks).items()},
    }


def op_curve(llm: LLM, peaks: MachinePeaks, budget_s: float) -> dict[str, list[float]]:
    """Time the ops of single steps; entries at the same place in the lists belong together.

    Args:
        llm: Idle.
        peaks: The machine.
        budget_s: Time for all steps together.

    Returns:
        ``ops.num_tokens``, ``ops.num_cached`` and ``ops.whole_s`` of each step, and of each op
        ``ops.<op>.measured_s``, ``.predicted_s``, ``.bytes`` and ``.flops`` over all layers. Steps
        that the engine's limits or pool do not hold are left out. Empty for a mixture of experts,
        whose ops are not counted one by one, and for a model that transformers runs.
    """
    if isinstance(llm.model_config, TransformersConfig):
        logger.info("single ops are not timed: transformers runs the model")
        return {}
    if llm.model_config.moe is not None:
        logger.info("single ops are not timed: the model has experts (MoE)")
        return {}
    columns: dict[str, list[float]] = {}
    kinds = _op_steps(llm)
    for kind in kinds:
        times = time_ops(llm.engine, kind, budget_s / len(kinds))
        if times is not None:
            for name, value in _op_row(times, _op_costs(llm, kind, peaks)).items():
                columns.setdefault(f"ops.{name}", []).append(value)
    return columns


def _op_steps(llm: LLM) -> list[StepKind]:
    """Return decodes of several sizes and a prefill; a shorter model has shorter ones."""
    context = min(OP_CONTEXT_TOKENS, llm.engine.checker.max_model_len)
    decodes = [StepKind(num_seqs, context - 1) for num_seqs in OP_BATCHES]
    return [*decodes, StepKind(1, 0, min(context, llm.config.max_num_batched_tokens))]


def _op_row(times: OpTimes, costs: list[OpRoofline]) -> dict[str, float]:
    row = {
        "num_tokens": float(times.kind.num_seqs * times.kind.num_new),
        "num_cached": float(times.kind.num_cached),
        "whole_s": times.whole_s,
        f"{BETWEEN}.measured_s": times.seconds[BETWEEN],
    }
    for cost in costs:
        row |= {
            f"{cost.op}.measured_s": times.seconds[cost.op],
            f"{cost.op}.predicted_s": cost.predicted_s or 0.0,
            f"{cost.op}.bytes": cost.num_bytes,
            f"{cost.op}.flops": cost.flops,
        }
    return row


def _op_costs(llm: LLM, kind: StepKind, peaks: MachinePeaks) -> list[OpRoofline]:
    model = llm.engine.runner.model
    weights = {
        op: float(sum(layer.linears[place].num_bytes for layer in model.layers))
        for place, op in enumerate(("qkv", "output", "gate_up", "down"))  # dense layers only
    }
    return op_rooflines(
        model.config,
        kind.size(model.config),
        peaks,
        weight_bytes=weights | {"head": float(model.head.num_bytes)},
        kv_bytes=model.dtype.itemsize,
        activation_bytes=model.dtype.itemsize,
    )


def _is_decode(num_seqs: int) -> Callable[[StepStats], bool]:
    return lambda s: s.num_decode_tokens == num_seqs and not s.num_prefill_tokens


def _is_prefill(num_tokens: int) -> Callable[[StepStats], bool]:
    return lambda s: s.num_prefill_tokens == num_tokens and not s.num_decode_tokens


def _steps(
    llm: LLM, num_seqs: int, num_tokens: int, wanted: Callable[[StepStats], bool]
) -> list[StepStats]:
    """Run requests of one size and return their steps of the wanted kind, warm-up left out."""
    vocab = llm.model_config.num_real_tokens
    prompts = [[(7 * i + j) % vocab for j in range(num_tokens)] for i in range(num_seqs)]
    requests = [WorkloadRequest(f"r{i}", 0.0, p, _NUM_DECODES) for i, p in enumerate(prompts)]
    serve(llm, requests, "closed")
    steps = [s for _ in range(2) for s in serve(llm, requests, "closed").step_log]
    return [s for s in steps if wanted(s)]


def _columns(
    llm: LLM, groups: list[list[StepStats]], peaks: MachinePeaks
) -> dict[str, list[float]]:
    config, precision = llm.model_config, precision_of(llm)
    assert isinstance(config, ModelConfig)
    columns: dict[str, list[float]] = {name: [] for name in _STEP_COLUMNS}
    for steps in filter(None, groups):
        middle = sorted(steps, key=lambda s: s.duration_s)[len(steps) // 2]
        cost = step_cost(middle, config, precision)
        measured = bootstrap_interval([s.duration_s for s in steps])
        point = roofline_point(cost, measured.estimate, peaks)
        row = (
            middle.num_tokens,
            measured.estimate,
            measured.low,
            measured.high,
            point.predicted_s,
            cost.num_bytes,
            cost.flops,
            median(s.schedule_s for s in steps),
            median(s.forward_s for s in steps),
            median(s.sample_s for s in steps),
        )
        for name, value in zip(_STEP_COLUMNS, row, strict=True):
            columns[name].append(float(value or 0.0))
    return columns


_STEP_COLUMNS = (
    "num_tokens",
    "measured_s",
    "low_s",
    "high_s",
    "predicted_s",
    "bytes",
    "flops",
    "schedule_s",
    "forward_s",
    "sample_s",
)
"""Tokens, median time with its 95 % interval, the machine's bound, counted work, parts."""
