"""Decode steps over the length of the context: where keys and values begin to cost time."""

from __future__ import annotations

import logging

from infopt.bench.kv_capacity import rules_of
from infopt.bench.op_times import StepKind, time_steps
from infopt.bench.roofline import MachinePeaks, predicted_seconds
from infopt.bench.stats import bootstrap_interval
from infopt.bench.step_cost import StepCost, layer_weights_read
from infopt.experiments.machine import precision_of
from infopt.experiments.measures import CurveOptions
from infopt.llm import LLM
from infopt.models.config import ModelConfig

logger = logging.getLogger(__name__)

COLUMNS = (
    "num_cached",
    "measured_s",
    "low_s",
    "high_s",
    "predicted_s",
    "kv_bytes",
    "weight_bytes",
    "num_seqs",
)
"""Context, median time with its 95 % interval, the machine's bound, counted bytes, sequences."""


def context_curve(
    llm: LLM,
    peaks: MachinePeaks,
    options: CurveOptions,
) -> dict[str, list[float]]:
    """Time decode steps of equal sequences, whatever their pages hold.

    Args:
        llm: Idle; its prefix cache is emptied.
        peaks: The machine.
        options: Sequences, contexts and time; what the engine does not hold is left out.

    Returns:
        ``context.<column>`` with one entry per context, for each of ``COLUMNS``.
    """
    config = llm.model_config
    if not isinstance(config, ModelConfig):
        logger.info("no times over the context: the bytes of a %s are not counted", config.family)
        return {}
    rows, num_seqs = [], options.num_seqs
    budget_s = options.budget_s / len(options.contexts)
    for context in options.contexts:
        times = time_steps(llm.engine, StepKind(num_seqs, context), budget_s)
        if times is not None:
            found = bootstrap_interval(times)
            cost = decode_cost(llm, config, num_seqs, context)
            predicted = predicted_seconds(cost, peaks) or 0.0
            measured = (found.estimate, found.low, found.high, predicted)
            rows.append((context, *measured, cost.kv_read_bytes, cost.weight_bytes, num_seqs))
    return {
        f"context.{name}": [float(row[place]) for row in rows] for place, name in enumerate(COLUMNS)
    }


def decode_cost(llm: LLM, config: ModelConfig, num_seqs: int, context: int) -> StepCost:
    """Count what a decode step must read: the weights once, and the pages of every sequence.

    Quantized pages count with their scales, the newest rows in full.
    """
    precision = precision_of(llm)
    rules, _ = rules_of(llm)
    weights = layer_weights_read(config, num_seqs)
    head = config.vocab_size * config.hidden_size
    pairs = config.num_layers * num_seqs * (context + 1)
    return StepCost(
        weight_bytes=weights * precision.weight_bytes + head * precision.head,
        kv_read_bytes=float(rules.num_bytes(rules.pages(context)) * num_seqs),
        linear_flops=2.0 * (weights + head) * num_seqs,
        attention_flops=4.0 * config.query_size * pairs,
    )
