"""Open-loop load: requests arrive when the schedule says, whether or not the engine keeps up."""

from __future__ import annotations

import functools
from collections import deque
from collections.abc import Sequence
from typing import Any

from infopt.bench.driver import DrivenEngine, LoadDriver, check_requests, engine_of
from infopt.bench.load_result import LoadResult
from infopt.bench.workload_types import WorkloadRequest
from infopt.sampling_params import SamplingParams


def run_open_loop(
    engine: DrivenEngine | Any,
    requests: Sequence[WorkloadRequest],
    *,
    params: SamplingParams | None = None,
    warmup: int | Sequence[WorkloadRequest] = 0,
    max_in_flight: int | None = None,
    max_duration_s: float = 600.0,
    reset_prefix_cache: bool = True,
) -> LoadResult:
    """Send requests at their scheduled times and measure from those times.

    A request whose time has come during a step is sent right after it; its latency still counts
    from the schedule, so a slow engine cannot hide the queue it causes.

    Args:
        engine: An engine, or an ``LLM``.
        requests: In order of arrival.
        params: Sampling parameters (default: greedy, no early end); ``max_tokens`` comes from each
            request.
        warmup: How many requests at the head of the schedule are warm-up (measurement then begins
            in a running system), or requests to run to completion beforehand.
        max_in_flight: Limit of a client with so many connections; later requests wait in it.
        max_duration_s: Guard; what is unfinished then is aborted and counted as unfinished.
        reset_prefix_cache: Forget cached prefixes before (and after warm-up run beforehand).

    Returns:
        Records of all requests; refused, aborted and empty ones are in it and counted apart.

    Raises:
        WorkloadError: Nothing to measure, repeated request ids, or arrivals out of order.
    """
    engine = engine_of(engine)
    run = functools.partial(
        _run, engine, params=params, max_in_flight=max_in_flight, max_duration_s=max_duration_s
    )
    if reset_prefix_cache:
        engine.reset_prefix_cache()
    if isinstance(warmup, int):
        return run(requests, num_warmup=warmup)
    before = run(warmup).records if warmup else []
    if before and reset_prefix_cache:
        engine.reset_prefix_cache()
    result = run(requests)
    result.warmup = before
    return result


def _run(
    engine: DrivenEngine,
    requests: Sequence[WorkloadRequest],
    *,
    params: SamplingParams | None,
    max_in_flight: int | None,
    max_duration_s: float,
    num_warmup: int = 0,
) -> LoadResult:
    check_requests(requests, num_warmup)
    driver = LoadDriver(engine, params, max_duration_s)
    pending = deque(requests)
    with driver.session() as step_log:
        while (pending or driver.in_flight) and not driver.must_stop():
            _dispatch_due(driver, pending, max_in_flight)
            if driver.in_flight or engine.has_unfinished:
                driver.step()
            elif pending:
                due_s = driver.origin_s + pending[0].arrival_s
                driver.clock.sleep(min(due_s, driver.deadline_s) - driver.clock.now())
        driver.skip(pending)
    return driver.result("open-loop", num_warmup, step_log)


def _dispatch_due(
    driver: LoadDriver, pending: deque[WorkloadRequest], max_in_flight: int | None
) -> None:
    while pending and (max_in_flight is None or len(driver.in_flight) < max_in_flight):
        due_s = driver.origin_s + pending[0].arrival_s
        if due_s > driver.clock.now():
            return
        driver.dispatch(pending.popleft(), due_s)
