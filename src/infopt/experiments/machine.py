"""This machine's limits for a loaded model: what a roofline is drawn from."""

from __future__ import annotations

import torch

from infopt.bench.roofline import MachinePeaks, Precision
from infopt.hardware import copy_bandwidth, matmul_flops
from infopt.llm import LLM


def machine_peaks(llm: LLM) -> MachinePeaks:
    """Return bandwidth and FLOP/s in the model's compute type, measured once per process."""
    facts = llm.stats()
    device = "cpu" if facts["device"] == "cpu" else str(facts["device"])
    threads = int(facts["num_threads"]) if device == "cpu" else None
    return MachinePeaks(
        bytes_per_s=copy_bandwidth(device, threads),
        flops_per_s=matmul_flops(getattr(torch, facts["dtype"]), device, threads),
    )


def precision_of(llm: LLM) -> Precision:
    """Return the bytes per value of weights and KV cache as they are held."""
    size = getattr(torch, llm.stats()["dtype"]).itemsize
    return Precision(weight_bytes=size, kv_bytes=size)
