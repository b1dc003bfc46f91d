# pyright: reportOptionalOperand=false, reportOperatorIssue=false

import numpy as np
import pytest

from infopt.bench.openloop import run_open_loop
from infopt.bench.slo import SLO
from infopt.bench.workload_types import WorkloadRequest
from infopt.bench.workloads import build_workload
from infopt.engine.clock import VirtualClock
from infopt.errors import WorkloadError
from infopt.sampling_params import SamplingParams


def poisson(rate: float, count: int, seed: int = 1) -> list[WorkloadRequest]:
    spec = {
        "kind": "synthetic",
        "num_requests": count,
        "prompt_tokens": 2,
        "output_tokens": 1,
        "arrivals": {"kind": "poisson", "rate": rate},
    }
    return build_workload(spec, vocab_size=100, seed=seed)


def mean(values: list[float]) -> float:
    return float(np.mean(values))


@pytest.mark.parametrize("utilisation", [0.3, 0.6])
def test_one_server_with_constant_service_reproduces_the_queueing_formula(
    fake_engine, utilisation: float
) -> None:
    """M/D/1: TTFT = D + R D^2 / (2 (1 - R D)); a generator that waits for answers measures D."""
    service_s = 0.1
    rate = utilisation / service_s
    engine = fake_engine(lambda _: [(service_s, 1)])
    result = run_open_loop(engine, poisson(rate, 10_000), warmup=1000, max_duration_s=1e9)
    expected = service_s + rate * service_s**2 / (2 * (1 - utilisation))
    assert mean([t.ttft_s for t in result.timings]) == pytest.approx(expected, rel=0.03)
    assert mean([t.queue_s for t in result.timings]) == pytest.approx(
        expected - service_s, rel=0.08
    )


def test_littles_law(fake_engine) -> None:
    """Requests in the system = rate x mean time in it, counted from the records alone."""
    engine = fake_engine(lambda _: [(0.1, 1)])
    result = run_open_loop(engine, poisson(7, 6_000), max_duration_s=1e9)
    grid = np.linspace(result.start_s, result.end_s, 20_001)
    starts = np.sort([t.scheduled_s for t in result.timings])
    ends = np.sort([t.finished_s for t in result.timings])
    concurrency = mean(np.searchsorted(starts, grid) - np.searchsorted(ends, grid))
    rate = len(result.records) / result.duration_s
    assert concurrency == pytest.approx(rate * mean([t.e2e_s for t in result.timings]), rel=0.05)


def test_latency_counts_from_the_schedule(fake_engine, make_requests) -> None:
    """Pins latencies without the queue: one worker, service 1.5 s, arrivals at 0, 1 and 2 s."""
    engine = fake_engine(lambda _: [(0.0, 1), (1.5, 1)])
    result = run_open_loop(engine, make_requests([0.0, 1.0, 2.0]))
    timings = result.timings
    assert [t.ttft_s for t in timings] == pytest.approx([0, 0.5, 1.0])
    assert [t.e2e_s for t in timings] == pytest.approx([1.5, 2.0, 2.5])
    assert [t.ttft_from_dispatch_s for t in timings] == pytest.approx([0, 0, 0])
    assert [t.e2e_from_dispatch_s for t in timings] == pytest.approx([1.5] * 3)
    assert [t.queue_s for t in timings] == pytest.approx([0, 0.5, 1.0])
    summary = result.summary()
    assert summary["latency"]["ttft_s"]["mean"] == pytest.approx(0.5)
    assert summary["latency"]["queue_s"]["mean"] == pytest.approx(0.5)


def test_a_fast_engine_gets_the_scheduled_rate(fake_engine) -> None:
    """Pins a generator that asked for 50 requests/s and sent fewer."""
    requests = poisson(50, 500)
    result = run_open_loop(fake_engine(lambda _: [(0.0, 1)]), requests)
    assert result.offered_rate_per_s == pytest.approx(50, rel=0.1)
    assert result.achieved_rate_per_s == pytest.approx(result.offered_rate_per_s, rel=0.05)
    assert [r.dispatched_s for r in result.records] == pytest.approx(
        [r.arrival_s for r in requests]
    )
    assert result.warnings == []


def test_a_client_with_few_connections_says_what_it_did_not_reach(fake_engine) -> None:
    engine = fake_engine(lambda _: [(0.5, 1)], num_workers=99, tick_s=0.01)
    result = run_open_loop(engine, poisson(50, 500), max_in_flight=4)
    assert result.offered_rate_per_s == pytest.approx(50, rel=0.1)
    assert result.achieved_rate_per_s == pytest.approx(8, rel=0.05)
    assert result.dispatched_rate_per_s == pytest.approx(8, rel=0.05)
    assert any("offered 5" in w and "achieved 8" in w for w in result.warnings)
    # The wait for a connection is in the headline figure.
    assert result.latency.ttft.p50 > 10
    assert result.latency.ttft_from_dispatch.p50 == pytest.approx(0.5, abs=0.02)


def test_warmup_at_the_head_of_the_schedule_is_kept_apart(fake_engine, make_requests) -> None:
    engine = fake_engine(lambda i: [(0.4 if i < 2 else 0.1, 1)], num_workers=8, tick_s=0.05)
    result = run_open_loop(engine, make_requests([i * 0.5 for i in range(10)]), warmup=2)
    assert [r.request.request_id for r in result.warmup] == ["r0", "r1"]
    assert len(result.records) == 8
    assert result.start_s == pytest.approx(1.0)
    assert max(t.e2e_s for t in result.timings) < 0.2
    assert all(s.start_s >= result.start_s for s in result.step_log)
    assert result.summary()["num_warmup"] == 2


def test_warmup_run_beforehand_does_not_delay_the_schedule(fake_engine, make_requests) -> None:
    """Pins a start-up burst in the percentiles: the first four requests take 5 s."""
    engine = fake_engine(lambda i: [(5.0 if i < 4 else 0.05, 1)], num_workers=4, tick_s=0.01)
    warm = [WorkloadRequest(f"w{i}", 0.0, [1], 1) for i in range(4)]
    result = run_open_loop(engine, make_requests([i * 0.1 for i in range(100)]), warmup=warm)
    assert result.latency.ttft.count == 100
    assert result.latency.ttft.p99 < 0.2
    assert [r.request.request_id for r in result.warmup] == ["w0", "w1", "w2", "w3"]


def test_refused_empty_and_aborted_requests_are_counted(fake_engine, make_requests) -> None:
    """Pins requests that vanish from the denominators when they fail."""
    plans = [[(0.1, 1)], [(0.1, 0)], [(0.1, 1)], [(9.0, 1)], [(0.1, 1)]]
    engine = fake_engine(lambda i: plans[i], num_workers=1, max_num_waiting=2, tick_s=0.05)
    step = engine.step

    def step_and_abort():
        if engine.clock.now() > 1:
            engine.abort("r4")
        return step()

    engine.step = step_and_abort
    result = run_open_loop(engine, make_requests([0, 0, 0, 0.5, 0.5]))
    assert result.status_counts == {
        "completed": 2, "empty": 1, "failed": 1, "aborted": 1, "unfinished": 0
    }  # fmt: skip
    assert result.latency.ttft.count == 2
    summary = result.summary(SLO(ttft_s=10.0))
    assert summary["num_requests"] == 5
    assert summary["goodput"]["goodput_share"] == pytest.approx(0.4)
    assert summary["errors"] == {"QueueFullError": 1}
    assert "1 empty, 1 failed, 1 aborted of 5 requests" in summary["warnings"][-1]


def test_a_run_that_takes_too_long_is_cut_and_says_so(fake_engine, make_requests) -> None:
    engine = fake_engine(lambda _: [(1.0, 1)])
    result = run_open_loop(engine, make_requests([0, 0, 0, 0, 50]), max_duration_s=2.5)
    assert result.was_cut
    assert result.status_counts["completed"] == 3
    assert result.status_counts["unfinished"] == 2
    assert "was cut" in result.warnings[0]
    assert not engine.has_unfinished
    assert len(result.records) == 5


def test_a_break_leaves_no_request_behind(fake_engine, make_requests) -> None:
    engine = fake_engine(lambda _: [(1.0, 1)])
    step, calls = engine.step, []

    def failing_step():
        calls.append(1)
        if len(calls) > 1:
            raise KeyboardInterrupt
        return step()

    engine.step = failing_step
    with pytest.raises(KeyboardInterrupt):
        run_open_loop(engine, make_requests([0, 0, 0]))
    assert not engine.running
    assert not engine.waiting
    assert engine.step_log is None


def test_a_request_that_the_engine_forgot_is_a_failure(fake_engine, make_requests) -> None:
    """Pins a generator that waits for ever."""
    engine = fake_engine(lambda _: [(1.0, 1)])
    result_step = engine.step

    def forget():
        engine.waiting.clear()
        return result_step()

    engine.step = forget
    result = run_open_loop(engine, make_requests([0]))
    assert result.status_counts["failed"] == 1


def test_prefix_cache_is_reset_before_each_run_unless_asked_not_to(
    fake_engine, make_requests
) -> None:
    engine = fake_engine(lambda _: [(0.1, 1)])
    run_open_loop(engine, make_requests([0]))
    assert engine.num_cache_resets == 1
    run_open_loop(engine, make_requests([0]), warmup=make_requests([0]))
    assert engine.num_cache_resets == 3
    run_open_loop(engine, make_requests([0]), reset_prefix_cache=False)
    assert engine.num_cache_resets == 3


def test_sampling_parameters_follow_the_workload(fake_engine, make_requests) -> None:
    engine = fake_engine(lambda _: [(0.1, 1)])
    run_open_loop(engine, make_requests([0]))
    run_open_loop(engine, make_requests([0]), params=SamplingParams(temperature=0.7, max_tokens=99))
    default, given = engine.params_seen
    assert (default.temperature, default.ignore_eos, default.max_tokens) == (0, True, 8)
    assert (given.temperature, given.ignore_eos, given.max_tokens) == (0.7, False, 8)


def test_schedules_start_at_the_clocks_present(fake_engine, make_requests) -> None:
    engine = fake_engine(lambda _: [(0.1, 1)], clock=VirtualClock(1000.0))
    result = run_open_loop(engine, make_requests([0, 1]))
    assert [r.scheduled_s for r in result.records] == [1000, 1001]
    assert [t.e2e_s for t in result.timings] == pytest.approx([0.1, 0.1])


def test_a_step_log_that_was_on_before_gets_the_steps_too(fake_engine, make_requests) -> None:
    engine = fake_engine(lambda _: [(0.1, 1)], step_log=[])
    result = run_open_loop(engine, make_requests([0, 0]))
    assert len(result.step_log) == len(engine.step_log) == 2


@pytest.mark.parametrize(
    ("arrivals", "warmup", "message"),
    [([0.0], 1, "Nothing is left to measure"), ([1.0, 0.5], 0, "before the one in front")],
)
def test_impossible_runs_are_refused(fake_engine, make_requests, arrivals, warmup, message) -> None:
    with pytest.raises(WorkloadError, match=message):
        run_open_loop(fake_engine(lambda _: [(0.1, 1)]), make_requests(arrivals), warmup=warmup)


def test_repeated_ids_are_refused(fake_engine, make_requests) -> None:
    with pytest.raises(WorkloadError, match="Two requests are called 'r0'"):
        run_open_loop(fake_engine(lambda _: [(0.1, 1)]), make_requests([0]) * 2)
