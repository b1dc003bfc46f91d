"""The load generator on a virtual clock against the formulas of queueing, over 200,000 arrivals.

Short runs are in `test_openloop.py`; this long one leaves chance no room: its bounds are 2 and 1 %.
"""

from __future__ import annotations

import numpy as np
import pytest

from infopt.bench.load_result import LoadResult
from infopt.bench.openloop import run_open_loop
from infopt.bench.workload_types import WorkloadRequest

NUM_ARRIVALS = 200_000
SERVICE_S = 0.1
UTILISATION = 0.6


@pytest.fixture(scope="module")
def result(fake_engine) -> LoadResult:
    """One server with constant service under Poisson arrivals."""
    rate = UTILISATION / SERVICE_S
    gaps = np.random.default_rng(7).exponential(1 / rate, NUM_ARRIVALS)
    prompt = [1, 2]
    requests = [
        WorkloadRequest(f"r{i}", float(t), prompt, 1) for i, t in enumerate(np.cumsum(gaps))
    ]
    engine = fake_engine(lambda _: [(SERVICE_S, 1)])
    return run_open_loop(engine, requests, warmup=1000, max_duration_s=1e9)


@pytest.fixture(scope="module")
def timings(result: LoadResult) -> list:
    return result.timings


def test_constant_service_under_poisson_arrivals_is_the_formula(timings) -> None:
    """M/D/1: TTFT = D + R D^2 / (2 (1 - R D))."""
    rate = UTILISATION / SERVICE_S
    expected = SERVICE_S + rate * SERVICE_S**2 / (2 * (1 - UTILISATION))
    assert np.mean([t.ttft_s for t in timings]) == pytest.approx(expected, rel=0.02)


def test_requests_in_the_system_are_rate_times_time(result, timings) -> None:
    """Little's law, with the number in the system counted from arrivals and departures alone."""
    starts = np.array([t.scheduled_s for t in timings])
    ends = np.array([t.finished_s for t in timings])
    events = np.concatenate([starts, ends])
    steps = np.concatenate([np.ones(len(starts)), -np.ones(len(ends))])
    order = np.argsort(events, kind="stable")
    levels = np.cumsum(steps[order])[:-1]
    span = events.max() - events.min()
    concurrency = float((levels * np.diff(events[order])).sum() / span)
    rate = len(result.records) / result.duration_s
    mean_e2e = float(np.mean([t.e2e_s for t in timings]))
    assert concurrency == pytest.approx(rate * mean_e2e, rel=0.01)


def test_the_server_is_busy_for_the_share_that_was_asked(result, timings) -> None:
    busy_s = len(timings) * SERVICE_S
    assert busy_s / result.duration_s == pytest.approx(UTILISATION, rel=0.02)
