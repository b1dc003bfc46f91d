"""Roofline per op: what each op of a step must read and compute, and which limit binds it.

Counted are the bytes that an op takes in and gives out: weights as they are stored, activations,
keys and values. Between two ops activations often stay in a cache, so for the small ones this is
more than memory sees. A multiply-add is two FLOPs; an exponential or a comparison is one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from infopt.bench.roofline import MachinePeaks
from infopt.bench.step_cost import Precision
from infopt.models.config import ModelConfig

Bound = Literal["memory", "compute"]

LAYER_OPS: tuple[str, ...] = (
    "norm",
    "qkv",
    "rotary",
    "attention",
    "output",
    "gate_up",
    "activation",
    "down",
)
"""Ops of the layers in their order; ``rotary`` also writes keys and values to their pages."""

OPS = (*LAYER_OPS, "head", "sampling")

_LOGIT_BYTES = 4


@dataclass(frozen=True, slots=True)
class StepSize:
    """What the ops of a step work on.

    Attributes:
        num_tokens: Rows of the products.
        num_logit_rows: Rows of the head.
        num_kv_rows: Keys that attention reads, summed over sequences and layers.
        num_pairs: Pairs of a query and a key it sees, summed over layers.
    """

    num_tokens: int
    num_logit_rows: int
    num_kv_rows: int
    num_pairs: int

    @classmethod
    def uniform(
        cls, config: ModelConfig, num_seqs: int, num_cached: int, num_new: int = 1
    ) -> StepSize:
        """Return the size of a step of equal sequences, each of which wants one row of logits.

        Args:
            config: The model; its window layers see at most their window.
            num_seqs: Sequences.
            num_cached: Tokens of each that were computed before.
            num_new: Tokens of each that the step computes.
        """
        num_kv_rows = num_pairs = 0
        for kind in config.layer_kinds:
            window = config.sliding_window if kind == "window" else None
            total = num_cached + num_new
            seen = [position + 1 for position in range(num_cached, total)]
            if window is not None:
                total = min(total, window + num_new - 1)
                seen = [min(keys, window) for keys in seen]
            num_kv_rows += num_seqs * total
            num_pairs += num_seqs * sum(seen)
        return cls(num_seqs * num_new, num_seqs, num_kv_rows, num_pairs)


@dataclass(frozen=True, slots=True)
class OpRoofline:
    """One op of a step, over all layers.

    Attributes:
        op: One of :data:`OPS`.
        flops: Floating-point operations.
        num_bytes: Bytes in and out.
        bound: Which limit binds (None: a peak is unknown).
        predicted_s: Least time (None: a peak is unknown).
    """

    op: str
    flops: float
    num_bytes: float
    bound: Bound | None
    predicted_s: float | None

    @property
    def intensity_flops_per_byte(self) -> float:
        """FLOPs per byte."""
        return self.flops / self.num_bytes


def weight_bytes_by_op(config: ModelConfig, precision: Precision) -> dict[str, float]:
    """Return the bytes of each product's weights over all layers, as a precision has them."""
    sizes = _product_sizes(config)
    layers = {
        op: rows * columns * config.num_layers * precision.weight_bytes
        for op, (rows, columns) in sizes.items()
    }
    return layers | {"head": config.hidden_size * config.vocab_size * precision.head}


def op_rooflines(
    config: ModelConfig,
    size: StepSize,
    peaks: MachinePeaks,
    *,
    weight_bytes: Mapping[str, float],
    kv_bytes: float,
    activation_bytes: float,
) -> list[OpRoofline]:
    """Return the ops of a step, in the order of :data:`OPS`.

    Norms are those that also add the residual, two per layer and one at the end.

    Args:
        config: The model.
        size: What the step works on.
        peaks: The machine.
        weight_bytes: Of each product over all layers, see :func:`weight_bytes_by_op`.
        kv_bytes: Per stored key or value.
        activation_bytes: Per value that goes from one op to the next.
    """
    costs = {
        **_product_costs(config, size, weight_bytes, activation_bytes),
        **_other_costs(config, size, kv_bytes, activation_bytes),
    }
    return [_place(op, *costs[op], peaks) for op in OPS]


def _product_sizes(config: ModelConfig) -> dict[str, tuple[int, int]]:
    """Return inputs and outputs of a layer's products."""
    hidden = config.hidden_size
    return {
        "qkv": (hidden, config.query_size + 2 * config.kv_size),
        "output": (config.query_size, hidden),
        "gate_up": (hidden, 2 * config.intermediate_size),
        "down": (config.intermediate_size, hidden),
    }


def _product_costs(
    config: ModelConfig, size: StepSize, weight_bytes: Mapping[str, float], width: float
) -> dict[str, tuple[float, float]]:
    """Return FLOPs and bytes of the products."""
    rows = size.num_tokens * config.num_layers
    products = {op: (*shape, rows) for op, shape in _product_sizes(config).items()}
    products["head"] = (config.hidden_size, config.vocab_size, size.num_logit_rows)
    return {
        op: (2.0 * n_in * n_out * rows, weight_bytes[op] + (n_in + n_out) * rows * width)
        for op, (n_in, n_out, rows) in products.items()
    }


def _other_costs(
    config: ModelConfig, size: StepSize, kv_bytes: float, width: float
) -> dict[str, tuple[float, float]]:
    """Return FLOPs and bytes of what has no weights to speak of."""
    rows = float(size.num_tokens * config.num_layers)
    queries, keys, mlp = config.query_size, config.kv_size, config.intermediate_size
    normed = (2 * rows + size.num_tokens) * config.hidden_size
    logits = float(size.num_logit_rows * config.vocab_size)
    return {
        # add, square, sum, scale, weight; x and residual come in, both results go out
        "norm": (5 * normed, 4 * normed * width),
        # two products and a sum for each value of q and k; v is moved
        "rotary": (
            3 * (queries + keys) * rows,
            (2 * queries + 2 * keys) * rows * width + 2 * keys * rows * kv_bytes,
        ),
        "attention": (
            4.0 * queries * size.num_pairs,
            2.0 * keys * kv_bytes * size.num_kv_rows + 2 * queries * rows * width,
        ),
        # exponential, sum, quotient, two products; gate and up come in
        "activation": (5 * mlp * rows, 3 * mlp * rows * width),
        "sampling": (logits, logits * _LOGIT_BYTES),
    }


def _place(op: str, flops: float, num_bytes: float, peaks: MachinePeaks) -> OpRoofline:
    if not peaks.bytes_per_s or not peaks.flops_per_s:
        return OpRoofline(op, flops, num_bytes, None, None)
    memory_s, compute_s = num_bytes / peaks.bytes_per_s, flops / peaks.flops_per_s
    bound: Bound = "compute" if compute_s > memory_s else "memory"
    return OpRoofline(op, flops, num_bytes, bound, max(memory_s, compute_s))
