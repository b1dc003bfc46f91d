"""Fixed batches, as servers made them before continuous batching: collect, run to the end, repeat.

>>> run_fixed_batches(llm, requests, BatchFill(size=8, timeout_s=0.1))

A batch starts when the engine is idle and ``size`` requests are waiting, or the oldest of them has
waited for ``timeout_s``. With 0 it starts with whatever is there.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from infopt.bench.driver import DrivenEngine, LoadDriver, check_requests, engine_of
from infopt.bench.load_result import LoadResult
from infopt.bench.options import check_count, check_positive
from infopt.bench.workload_types import WorkloadRequest
from infopt.sampling_params import SamplingParams


@dataclass(frozen=True, slots=True)
class BatchFill:
    """When a batch is full enough to start.

    Attributes:
        size: Requests of a full batch.
        timeout_s: How long the oldest request waits for a full one, in seconds.
    """

    size: int
    timeout_s: float = 0.0

    def __post_init__(self) -> None:
        """Check the values.

        Raises:
            WorkloadError: Names the value.
        """
        check_count("size", self.size, minimum=1)
        if self.timeout_s != 0:
            check_positive("timeout_s", self.timeout_s)


def run_fixed_batches(
    engine: DrivenEngine | Any,
    requests: Sequence[WorkloadRequest],
    fill: BatchFill,
    *,
    params: SamplingParams | None = None,
    max_duration_s: float = 600.0,
) -> LoadResult:
    """Send requests to the engine one batch at a time; latencies count from the schedule.

    Args:
        engine: An engine, or an ``LLM``; its own batches must hold ``fill.size`` sequences.
        requests: In order of arrival.
        fill: When a batch starts.
        params: Sampling parameters (default: greedy, no early end); ``max_tokens`` comes from each
            request.
        max_duration_s: Guard; what is unfinished then is aborted and counted as unfinished.

    Raises:
        WorkloadError: Nothing to measure, repeated request ids, or arrivals out of order.
    """
    engine = engine_of(engine)
    check_requests(requests, 0)
    engine.reset_prefix_cache()
    driver = LoadDriver(engine, params, max_duration_s)
    pending = deque(requests)
    with driver.session() as step_log:
        while (pending or driver.in_flight) and not driver.must_stop():
            if driver.in_flight:
                driver.step()
                continue
            start_s = driver.origin_s + _start_of(pending, fill)
            if start_s > driver.clock.now():
                driver.clock.sleep(min(start_s, driver.deadline_s) - driver.clock.now())
                continue
            _dispatch(driver, pending, fill.size)
        driver.skip(pending)
    return driver.result("open-loop", 0, step_log)


def _start_of(pending: deque[WorkloadRequest], fill: BatchFill) -> float:
    """Return when the next batch is full or its oldest request has waited enough."""
    timeout_s = pending[0].arrival_s + fill.timeout_s
    if len(pending) < fill.size:
        return timeout_s
    return min(pending[fill.size - 1].arrival_s, timeout_s)


def _dispatch(driver: LoadDriver, pending: deque[WorkloadRequest], size: int) -> None:
    now_s = driver.clock.now()
    for _ in range(size):
        if not pending or driver.origin_s + pending[0].arrival_s > now_s:
            return
        request = pending.popleft()
        driver.dispatch(request, driver.origin_s + request.arrival_s)
