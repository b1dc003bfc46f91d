"""Measuring: workloads, load generators, latencies, objectives, paired comparisons, rooflines.

A run goes through these modules in order::

    workloads.build_workload(spec, tokenizer=...)      what is asked, as seeded plain data
    openloop.run_open_loop(llm, requests)              at scheduled times, or
    closed.run_batch(llm, requests)                    all at once, or
    http.run_http_load(load, requests)                 at scheduled times, on any server
      -> LoadResult.summary(slo)                       latencies, throughput, goodput
    load_sweep.sweep(measure, rates, slo)              how much load does it take?
    paired.run_paired(arms, reference, repeats)        is one arm faster? with an interval
    roofline_log.summarize_roofline(steps, ...)        and why

The names below load on first use.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from infopt.bench.closed import run_batch, run_closed_loop
    from infopt.bench.load_result import LoadResult
    from infopt.bench.load_sweep import sweep
    from infopt.bench.openloop import run_open_loop
    from infopt.bench.paired import run_paired
    from infopt.bench.slo import SLO
    from infopt.bench.workloads import WorkloadRequest, build_workload

__all__ = [
    "SLO",
    "LoadResult",
    "WorkloadRequest",
    "build_workload",
    "run_batch",
    "run_closed_loop",
    "run_open_loop",
    "run_paired",
    "sweep",
]

_LAZY = {
    "SLO": "slo",
    "LoadResult": "load_result",
    "WorkloadRequest": "workloads",
    "build_workload": "workloads",
    "run_batch": "closed",
    "run_closed_loop": "closed",
    "run_open_loop": "openloop",
    "run_paired": "paired",
    "sweep": "load_sweep",
}


def __getattr__(name: str) -> Any:
    """Import public names on first use."""
    if name in _LAZY:
        return getattr(importlib.import_module(f"infopt.bench.{_LAZY[name]}"), name)
    raise AttributeError(f"module 'infopt.bench' has no attribute {name!r}")
