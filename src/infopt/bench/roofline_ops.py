"""Roofline per op: intensity and bound of each matrix product of a decode step by batch size."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

from infopt.bench.roofline import MachinePeaks, Precision
from infopt.models.config import ModelConfig

Bound = Literal["memory", "compute"]


@dataclass(frozen=True, slots=True)
class OpRoofline:
    """One op of a decode step over all layers.

    Attributes:
        op: qkv, attention, o, gate_up, down or head.
        num_seqs: Sequences in the batch (one new token each).
        flops: Floating-point operations.
        num_bytes: Weights, keys and values, and the activations in and out.
        intensity_flops_per_byte: ``flops / num_bytes``.
        bound: Which limit binds (None: peaks unknown).
        predicted_s: Least time (None: peaks unknown).
    """

    op: str
    num_seqs: int
    flops: float
    num_bytes: float
    intensity_flops_per_byte: float
    bound: Bound | None
    predicted_s: float | None

    def to_dict(self) -> dict[str, Any]:
        """Return plain data for a table."""
        return asdict(self)


def op_rooflines(
    config: ModelConfig,
    precision: Precision,
    peaks: MachinePeaks,
    batch_sizes: Sequence[int],
    *,
    context_tokens: int = 1024,
    activation_bytes: float = 4.0,
) -> list[OpRoofline]:
    """Return the ops of a decode step for each batch size.

    Args:
        config: The model.
        precision: Bytes per stored value.
        peaks: The machine.
        batch_sizes: Sequences per step.
        context_tokens: Cached tokens of each sequence; window layers read at most their window.
        activation_bytes: Bytes per activation value.
    """
    table = []
    for num_seqs in batch_sizes:
        for op, (rows, columns, count, value_bytes) in _products(config, precision).items():
            flops = 2.0 * rows * columns * num_seqs * count
            moved = rows * columns * value_bytes + (rows + columns) * num_seqs * activation_bytes
            table.append(_place(op, num_seqs, flops, moved * count, peaks))
        pairs = num_seqs * _keys_per_query(config, context_tokens)
        kv = 2.0 * config.kv_size * precision.kv_bytes * pairs
        activations = 2.0 * config.query_size * num_seqs * config.num_layers * activation_bytes
        flops = 4.0 * config.query_size * pairs
        table.append(_place("attention", num_seqs, flops, kv + activations, peaks))
    return table


def _products(config: ModelConfig, precision: Precision) -> dict[str, tuple[int, int, int, float]]:
    """Return inputs, outputs, number of layers and bytes per weight of each matrix product."""
    hidden, layers, weight = config.hidden_size, config.num_layers, precision.weight_bytes
    return {
        "qkv": (hidden, config.query_size + 2 * config.kv_size, layers, weight),
        "o": (config.query_size, hidden, layers, weight),
        "gate_up": (hidden, 2 * config.intermediate_size, layers, weight),
        "down": (config.intermediate_size, hidden, layers, weight),
        "head": (hidden, config.vocab_size, 1, precision.head),
    }


def _keys_per_query(config: ModelConfig, context_tokens: int) -> int:
    """Return the cached tokens that one new token reads, summed over the layers."""
    num_full = config.layer_kinds.count("full")
    window = min(context_tokens, config.sliding_window or context_tokens)
    return num_full * context_tokens + (config.num_layers - num_full) * window


def _place(
    op: str, num_seqs: int, flops: float, num_bytes: float, peaks: MachinePeaks
) -> OpRoofline:
    intensity = flops / num_bytes
    ridge = peaks.ridge_flops_per_byte
    bound: Bound | None = None
    seconds: float | None = None
    if ridge is not None and peaks.bytes_per_s and peaks.flops_per_s:
        bound = "compute" if intensity > ridge else "memory"
        seconds = max(num_bytes / peaks.bytes_per_s, flops / peaks.flops_per_s)
    return OpRoofline(op, num_seqs, flops, num_bytes, intensity, bound, seconds)
