"""An arm: one candidate, loaded and ready to serve the slice's workload again and again."""

from __future__ import annotations

import gc
from collections.abc import Callable, Mapping, Sequence
from statistics import median
from types import TracebackType
from typing import Any

import torch

from infopt.bench.closed import run_batch
from infopt.bench.fixed_batches import BatchFill, run_fixed_batches
from infopt.bench.load_result import LoadResult
from infopt.bench.openloop import run_open_loop
from infopt.bench.rates import at_rate, build_for
from infopt.bench.slo import SLO
from infopt.bench.step_cost import step_bytes
from infopt.bench.workload_types import WorkloadRequest
from infopt.bench.workloads import build_workload
from infopt.config import EngineConfig
from infopt.energy import MeterChoice, NoMeter, measured_run
from infopt.engine.stats import StepStats
from infopt.errors import MeasurementError
from infopt.experiments.energy import J_PER_TOKEN, measured_j_per_token
from infopt.experiments.machine import precision_of
from infopt.experiments.slice_spec import Load
from infopt.llm import LLM

HIGHER_IS_BETTER: Mapping[str, bool] = {
    "output_tokens_per_s": True,
    "goodput_requests_per_s": True,
    "ttft_s": False,
    "tpot_s": False,
    "itl_s": False,
    "e2e_s": False,
    J_PER_TOKEN: False,
}
"""Numbers of one run that are compared pair by pair; latencies are the run's medians, and energy is
compared where it was measured, not where it was modelled."""


_UNMETERED = MeterChoice(NoMeter("energy was not measured in this run"), {})


class Arm:
    """A loaded candidate.

    Args:
        slug: Its name.
        config: How it runs.
        load: All at once, or when the workload says.
        slo: Objective for its goodput; None where none counts.
        meter: Chooses what measures its energy, given the engine's device.

    ``fill`` hands requests over in fixed batches where it is set.
    """

    def __init__(
        self,
        slug: str,
        config: EngineConfig,
        *,
        load: Load,
        slo: SLO | None,
        meter: Callable[[str], MeterChoice] | None = None,
    ) -> None:
        """Load the model."""
        self.slug, self.slo = slug, slo
        self.load: Load = load
        self.llm = LLM(config=config)
        self.meter = meter(str(self.llm.stats()["device"])) if meter else _UNMETERED
        self._precision = precision_of(self.llm)
        self.requests: Sequence[Sequence[WorkloadRequest]] = ()
        self.results: list[LoadResult] = []
        self.fill: BatchFill | None = None

    def __enter__(self) -> Arm:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.llm.close()
        gc.collect()  # two arms share the memory: the pages of this one must be gone

    def run(self) -> float:
        """Serve requests once, keep the result, return its throughput in tokens/s.

        ``requests`` holds one list per seed; runs go through them in turn.

        Raises:
            MeasurementError: A request did not complete: its time would be missing in every figure.
        """
        result = self.serve(self.requests[len(self.results) % len(self.requests)])
        self.results.append(result)
        return figures(result, self.slo)["output_tokens_per_s"]

    def serve(self, requests: Sequence[WorkloadRequest]) -> LoadResult:
        """Serve requests once and measure the energy; the result is the caller's.

        Raises:
            MeasurementError: A request did not complete.
        """
        if self.llm.config.num_threads is not None:
            # The number of threads is the process's, and arms with others take turns with this one.
            torch.set_num_threads(self.llm.config.num_threads)
        with measured_run(self.llm.engine, self.meter, self.bytes_of) as energy:
            result = serve(self.llm, requests, self.load, self.fill)
        result.energy = energy
        check_complete(result, self.slug)
        return result

    def bytes_of(self, step: StepStats) -> float:
        """Return the bytes that a step moves, for meters that model energy."""
        return step_bytes(step, self.llm.model_config, self._precision)


def make_requests(llm: LLM, workload: Mapping[str, Any], seed: int) -> list[WorkloadRequest]:
    """Build the requests of a workload for a model."""
    return build_workload(workload, tokenizer=llm.tokenizer, seed=seed)


def requests_at(
    llm: LLM, workload: Mapping[str, Any], rate: float, search: Mapping[str, Any], seed: int
) -> list[WorkloadRequest]:
    """Build the requests of a workload at a rate.

    Args:
        llm: Gives the tokenizer.
        workload: Whose arrivals are stretched or compressed.
        rate: Requests per second.
        search: ``duration_s`` of arrivals, and ``min_requests``: slower loads last longer.
        seed: Seed of the workload.
    """
    duration_s = max(search["duration_s"], search["min_requests"] / rate)
    return build_for(at_rate(workload, rate), duration_s, tokenizer=llm.tokenizer, seed=seed)


def serve(
    llm: LLM, requests: Sequence[WorkloadRequest], load: Load, fill: BatchFill | None = None
) -> LoadResult:
    """Serve requests once with an empty prefix cache.

    Args:
        llm: Idle.
        requests: What to serve.
        load: All at once, or when the workload says.
        fill: Hand them over in fixed batches (``load`` is ``open``).
    """
    if fill is not None:
        return run_fixed_batches(llm, requests, fill)
    return run_batch(llm, requests) if load == "closed" else run_open_loop(llm, requests)


def check_complete(result: LoadResult, slug: str) -> None:
    """Refuse a run with requests that have no answer.

    Raises:
        MeasurementError: Says how many and why.
    """
    bad = {k: n for k, n in result.status_counts.items() if k != "completed" and n}
    if not bad:
        return
    errors = sorted({r.error for r in result.records if r.error})
    parts = ", ".join(f"{count} {status}" for status, count in bad.items())
    raise MeasurementError(
        f"{slug}: {parts} of {len(result.records)} requests. {' '.join(errors[:1])}".strip(),
        field="workload",
        value=bad,
        remedy="Give it a larger pool or max_model_len, or a workload that fits.",
    )


def figures(result: LoadResult, slo: SLO | None) -> dict[str, float]:
    """Return the numbers of one run that are compared (what it cannot tell is absent)."""
    timings = result.timings
    by_request = {
        "ttft_s": [t.ttft_s for t in timings],
        "tpot_s": [t.tpot_s for t in timings],
        "itl_s": [gap for t in timings for gap in t.itl_s],
        "e2e_s": [t.e2e_s for t in timings],
    }
    found = {name: [v for v in values if v is not None] for name, values in by_request.items()}
    out = {name: median(values) for name, values in found.items() if values}
    num_tokens = sum(t.num_output_tokens for t in timings)
    out["output_tokens_per_s"] = num_tokens / result.duration_s
    goodput = result.evaluate(slo).goodput_requests_per_s if slo else None
    energy = measured_j_per_token(result)
    return (
        out
        | ({"goodput_requests_per_s": goodput} if goodput else {})
        | ({J_PER_TOKEN: energy} if energy else {})
    )
