"""Closed-loop load: a fixed number of requests in flight, or everything at once."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any

from infopt.bench.driver import DrivenEngine, LoadDriver, check_requests, engine_of
from infopt.bench.load_result import LoadMode, LoadResult
from infopt.bench.workload_types import WorkloadRequest
from infopt.errors import WorkloadError
from infopt.sampling_params import SamplingParams


def run_batch(
    llm_or_engine: DrivenEngine | Any,
    requests: Sequence[WorkloadRequest],
    params: SamplingParams | None = None,
    *,
    max_duration_s: float = 600.0,
    reset_prefix_cache: bool = True,
) -> LoadResult:
    """Hand over all requests at once and run to the end: the throughput of a full queue.

    Args:
        llm_or_engine: An engine, or an ``LLM``.
        requests: Their arrival times are ignored; all count from the start.
        params: Sampling parameters (default: greedy, no early end); ``max_tokens`` comes from each
            request.
        max_duration_s: Guard; what is unfinished then is aborted and counted as unfinished.
        reset_prefix_cache: Forget cached prefixes before.
    """
    return _run(
        engine_of(llm_or_engine),
        requests,
        params=params,
        concurrency=len(requests),
        num_warmup=0,
        mode="batch",
        max_duration_s=max_duration_s,
        reset_prefix_cache=reset_prefix_cache,
    )


def run_closed_loop(
    llm_or_engine: DrivenEngine | Any,
    requests: Sequence[WorkloadRequest],
    *,
    concurrency: int,
    params: SamplingParams | None = None,
    warmup: int = 0,
    max_duration_s: float = 600.0,
    reset_prefix_cache: bool = True,
) -> LoadResult:
    """Keep ``concurrency`` requests in flight: each end sends the next (no queue can form).

    Args:
        llm_or_engine: An engine, or an ``LLM``.
        requests: Their arrival times are ignored; each counts from when it is sent.
        concurrency: Requests in flight.
        params: Sampling parameters (default: greedy, no early end).
        warmup: How many requests at the head are warm-up. The system does not drain after them, so
            measurement begins in a running system.
        max_duration_s: Guard; what is unfinished then is aborted and counted as unfinished.
        reset_prefix_cache: Forget cached prefixes before.
    """
    if concurrency < 1:
        raise WorkloadError(
            f"concurrency must be at least 1, got {concurrency}.",
            field="concurrency",
            value=concurrency,
        )
    return _run(
        engine_of(llm_or_engine),
        requests,
        params=params,
        concurrency=concurrency,
        num_warmup=warmup,
        mode="closed-loop",
        max_duration_s=max_duration_s,
        reset_prefix_cache=reset_prefix_cache,
    )


def _run(
    engine: DrivenEngine,
    requests: Sequence[WorkloadRequest],
    *,
    params: SamplingParams | None,
    concurrency: int,
    num_warmup: int,
    mode: LoadMode,
    max_duration_s: float,
    reset_prefix_cache: bool,
) -> LoadResult:
    check_requests([_now(r) for r in requests], num_warmup)
    if reset_prefix_cache:
        engine.reset_prefix_cache()
    driver = LoadDriver(engine, params, max_duration_s)
    pending = deque(_now(r) for r in requests)
    with driver.session() as step_log:
        while (pending or driver.in_flight) and not driver.must_stop():
            now_s = driver.origin_s if mode == "batch" else driver.clock.now()
            while pending and len(driver.in_flight) < concurrency:
                driver.dispatch(pending.popleft(), now_s)
            if driver.in_flight:
                driver.step()
        driver.skip(pending)
    return driver.result(mode, num_warmup, step_log)


def _now(request: WorkloadRequest) -> WorkloadRequest:
    """Return the request without an arrival time."""
    return WorkloadRequest(
        request.request_id, 0.0, request.prompt_token_ids, request.max_tokens, request.prefix_group
    )
