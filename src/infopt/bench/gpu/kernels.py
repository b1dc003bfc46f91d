"""The kernel sections: every kernel against its reference, then against its roofline."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from itertools import chain
from typing import Any

import torch

from infopt.bench.gpu.budget import Budget
from infopt.bench.gpu.case import LLAMA_8B, TINY, KernelCase, Sizes
from infopt.bench.gpu.timing import seconds_per_call
from infopt.machine_rates import measure_matmul_flops, measure_memory_bandwidth


def kernel_section(device: torch.device, budget: Budget) -> dict[str, Any]:
    """Compare and time every case; a case that fails is recorded and the next one runs.

    Returns:
        ``{"peaks": ..., "cases": {name: ...}, "failed": [...], "skipped": [...]}``.
    """
    sizes = LLAMA_8B if device.type == "cuda" else TINY
    peaks = _peaks(device)
    report: dict[str, Any] = {"peaks": peaks, "cases": {}, "failed": [], "skipped": []}
    try:
        for case in _cases(sizes, device):
            if budget.is_spent:
                report["skipped"].append(case.name)
                continue
            result = _measure(case, device, peaks)
            report["cases"][case.name] = result
            if not result["ok"]:
                report["failed"].append(case.name)
            del case
            gc.collect()
    except Exception as error:  # a case could not be made: what was measured is kept
        report["failed"].append("the next case")
        report["reason"] = f"{type(error).__name__}: {error}"[:500]
    return report


def _cases(sizes: Sizes, device: torch.device) -> Iterator[KernelCase]:
    from infopt.bench.gpu.decoder_cases import decoder_cases
    from infopt.bench.gpu.weight_cases import weight_cases

    return chain(decoder_cases(sizes, device), weight_cases(sizes, device))


def _measure(case: KernelCase, device: torch.device, peaks: dict[str, float]) -> dict[str, Any]:
    """Return error, times and share of the roofline; a failure is a result as well."""
    try:
        error = case.error()
        seconds, timer = seconds_per_call(case.timed or case.run, device)
        result: dict[str, Any] = {
            "ok": error <= case.tolerance,
            "error": error,
            "tolerance": case.tolerance,
            "seconds": seconds,
            "timer": timer,
            "bound_seconds": bound_seconds(case, peaks),
        }
        result["share_of_roofline"] = result["bound_seconds"] / seconds
        if case.peer is not None:
            result["peer_seconds"], result["peer_timer"] = seconds_per_call(case.peer, device)
        return result
    except Exception as error:  # recorded, not raised: the section goes on with the next case
        return {"ok": False, "reason": f"{type(error).__name__}: {error}"[:500]}


def bound_seconds(case: KernelCase, peaks: dict[str, float]) -> float:
    """Return the least time that the counted work can take on a machine with these peaks."""
    rate = peaks[str(case.peak).removeprefix("torch.")]
    return max(case.num_bytes / peaks["bytes_per_s"], case.flops / rate)


def _peaks(device: torch.device) -> dict[str, float]:
    """Measure bytes/s and products of each type."""
    name = "cuda" if device.type == "cuda" else "cpu"
    size = 8192 if name == "cuda" else 256
    working_set = None if name == "cuda" else 2**24
    bandwidth = measure_memory_bandwidth(device=name, working_set_bytes=working_set, repeats=3)
    peaks = {"bytes_per_s": bandwidth.best}
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        rate = measure_matmul_flops(dtype, device=name, size=size, repeats=3)
        peaks[str(dtype).removeprefix("torch.")] = rate.best
    return peaks
