"""This machine's limits for a loaded model: what a roofline is drawn from."""

from __future__ import annotations

import functools

import torch

from infopt.bench.roofline import MachinePeaks
from infopt.bench.step_cost import Precision, engine_precision
from infopt.llm import LLM
from infopt.machine_rates import matmul_flops, measure_matmul_flops, measure_rate, memory_bandwidth
from infopt.models.fallback.config import TransformersConfig
from infopt.ops.dispatch import OpTarget, implementations

_PRODUCT_ROWS = 1024


def machine_peaks(llm: LLM) -> MachinePeaks:
    """Return bandwidth and FLOP/s in the model's compute type, measured once per process."""
    facts = llm.stats()
    device = "cpu" if facts["device"] == "cpu" else str(facts["device"])
    threads = int(facts["num_threads"]) if device == "cpu" else None
    return MachinePeaks(
        bytes_per_s=memory_bandwidth(device, threads),
        flops_per_s=max(
            [
                _fastest_product(getattr(torch, facts["dtype"]), device, threads),
                *_own_product(llm, threads),
            ]
        ),
    )


@functools.cache
def _fastest_product(dtype: torch.dtype, device: str, num_threads: int | None) -> float:
    """Return the FLOP/s of torch's product or of the fastest that a layer can use here.

    A BLAS may be far from a processor's limit; a limit that the model itself exceeds is none.
    """
    target = OpTarget(torch.device(device), dtype)
    usable = [i for i in implementations()["linear"] if i.why_not(target) is None]
    rates = [
        measure_matmul_flops(dtype, num_threads, device=device, prepare=i.load()).best
        for i in usable
        if i.backend != "reference"  # which is torch's product with padding
    ]
    return max([matmul_flops(dtype, device, num_threads), *rates])


def _own_product(llm: LLM, num_threads: int | None) -> list[float]:
    """Return the FLOP/s of the model's largest layer on many rows.

    Products of 8-bit codes can be faster than any of the compute type. Those inside transformers'
    modules are torch's own, which are measured without the model.
    """
    if isinstance(llm.model_config, TransformersConfig):
        return []
    model = llm.engine.runner.model
    linear = max(model.linears[:-1], key=lambda layer: layer.in_features * layer.out_features)
    rows = torch.ones(_PRODUCT_ROWS, linear.in_features, dtype=model.dtype, device=model.device)
    flops = 2 * _PRODUCT_ROWS * linear.in_features * linear.out_features
    return [measure_rate(lambda: linear(rows), flops, num_threads, device=str(model.device)).best]


def precision_of(llm: LLM) -> Precision:
    """Return the bytes per value of weights and KV cache as they are held."""
    return engine_precision(llm.engine.describe())
