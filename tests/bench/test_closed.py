import pytest

from infopt.bench.closed import run_batch, run_closed_loop
from infopt.errors import WorkloadError


def test_a_batch_is_sent_at_once_whatever_the_arrivals(fake_engine, make_requests) -> None:
    engine = fake_engine(lambda _: [(0.5, 3), (1.0, 2)], num_workers=2)
    result = run_batch(engine, make_requests([0, 7, 9, 11]))
    assert [r.scheduled_s for r in result.records] == [0, 0, 0, 0]
    assert result.duration_s == pytest.approx(2.0)
    summary = result.summary()
    assert summary["mode"] == "batch"
    assert summary["num_output_tokens"] == 20
    assert summary["throughput_tokens_per_s"] == pytest.approx(10)
    assert summary["num_prompt_tokens"] == 16
    assert summary["prompt_throughput_tokens_per_s"] == pytest.approx(8)
    assert summary["request_rate_per_s"] == pytest.approx(2)
    assert summary["offered_rate_per_s"] is None
    assert summary["cache_hit_rate"] == 0
    assert summary["warnings"] == []


def test_an_llm_is_accepted_in_place_of_its_engine(fake_engine, make_requests) -> None:
    class Llm:
        engine = fake_engine(lambda _: [(0.5, 1)])

    assert run_batch(Llm(), make_requests([0])).status_counts["completed"] == 1


def test_preemptions_and_cached_tokens_are_added_up(fake_engine, make_requests) -> None:
    engine = fake_engine(lambda _: [(0.5, 1)])
    result = run_batch(engine, make_requests([0, 0]))
    for output in result.outputs:
        output.num_cached_tokens = 3
        output.metrics.num_preemptions = 2
    assert result.summary()["cache_hit_rate"] == 0.75
    assert result.summary()["num_preemptions"] == 4


def test_a_closed_loop_never_exceeds_its_concurrency(fake_engine, make_requests) -> None:
    engine = fake_engine(lambda i: [(0.1 + 0.01 * (i % 3), 1)], num_workers=99)
    result = run_closed_loop(engine, make_requests([0] * 20), concurrency=3)
    events = [(t.dispatched_s, 1) for t in result.timings]
    events += [(t.finished_s, -1) for t in result.timings]
    in_flight, peak = 0, 0
    for _, change in sorted(events):
        in_flight += change
        peak = max(peak, in_flight)
    assert peak == 3
    assert [t.queue_s for t in result.timings] == pytest.approx([0] * 20)


def test_warmup_of_a_closed_loop_does_not_drain(fake_engine, make_requests) -> None:
    """Pins start-up times in the percentiles: 4 slow starts, then 40 measured requests."""
    engine = fake_engine(lambda i: [(5.0 if i < 4 else 0.05, 1)], num_workers=4, tick_s=0.01)
    result = run_closed_loop(engine, make_requests([0] * 44), concurrency=4, warmup=4)
    assert len(result.records) == 40
    assert [r.request.request_id for r in result.warmup] == ["r0", "r1", "r2", "r3"]
    assert max(t.ttft_s for t in result.timings) < 0.2
    assert result.latency.ttft.count == 40


def test_a_batch_that_takes_too_long_is_cut(fake_engine, make_requests) -> None:
    engine = fake_engine(lambda _: [(1.0, 1)])
    result = run_batch(engine, make_requests([0] * 5), max_duration_s=1.5)
    assert result.was_cut
    assert result.status_counts["completed"] + result.status_counts["unfinished"] == 5
    assert result.status_counts["unfinished"] == 3
    assert not engine.has_unfinished


def test_a_batch_that_is_refused_as_a_whole_ends(fake_engine, make_requests) -> None:
    engine = fake_engine(lambda _: [(1.0, 1)], max_num_waiting=0)
    result = run_batch(engine, make_requests([0, 0]))
    assert result.status_counts["failed"] == 2
    assert result.summary()["throughput_tokens_per_s"] is None


def test_concurrency_zero_is_refused(fake_engine, make_requests) -> None:
    with pytest.raises(WorkloadError, match="concurrency must be at least 1, got 0"):
        run_closed_loop(fake_engine(lambda _: [(1.0, 1)]), make_requests([0]), concurrency=0)
