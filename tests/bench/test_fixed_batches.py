"""Fixed batches on the virtual clock: when they start, and what waiting counts."""

from __future__ import annotations

import pytest

from infopt.bench.fixed_batches import BatchFill, run_fixed_batches
from infopt.errors import WorkloadError

SERVICE_S = 1.0


@pytest.fixture
def ends(fake_engine, make_requests):
    """Ends of requests that arrive at given times; each batch takes a second."""

    def run(arrivals, fill):
        engine = fake_engine(plan=lambda _: [(SERVICE_S, 1)], num_workers=8)
        result = run_fixed_batches(engine, make_requests(arrivals), fill)
        assert result.status_counts["completed"] == len(arrivals)
        return [round(t.finished_s - result.start_s, 9) for t in result.timings]

    return run


def test_without_a_timeout_a_batch_starts_with_whatever_is_there(ends):
    assert ends([0.0, 0.1, 0.2, 1.5], BatchFill(2)) == [1.0, 2.0, 2.0, 3.0]


def test_a_batch_waits_for_the_timeout_of_its_oldest_or_until_it_is_full(ends):
    assert ends([0.0, 0.1, 0.2], BatchFill(3, 0.5)) == [1.2, 1.2, 1.2]
    assert ends([0.0, 0.1, 0.9], BatchFill(3, 0.5)) == [1.5, 1.5, 2.5]


def test_nobody_joins_a_batch_that_runs(ends):
    assert ends([0.0, 0.5, 0.6, 0.7], BatchFill(8, 0.1)) == [1.1, 2.1, 2.1, 2.1]


def test_latency_counts_from_the_schedule(fake_engine, make_requests):
    engine = fake_engine(plan=lambda _: [(SERVICE_S, 1)], num_workers=8)
    result = run_fixed_batches(engine, make_requests([0.0, 0.25]), BatchFill(1))
    assert [t.ttft_s for t in result.timings] == pytest.approx([1.0, 1.75])
    assert engine.num_cache_resets == 1


def test_a_run_that_takes_too_long_is_cut_and_says_so(fake_engine, make_requests):
    engine = fake_engine(plan=lambda _: [(SERVICE_S, 1)], num_workers=8, tick_s=0.1)
    requests = make_requests([0.0, 0.1, 9.0])
    result = run_fixed_batches(engine, requests, BatchFill(1), max_duration_s=1.5)
    assert result.was_cut
    assert result.status_counts["unfinished"] == 2


@pytest.mark.parametrize("options", [{"size": 0}, {"size": 1, "timeout_s": -1.0}])
def test_an_impossible_batch_is_named(options):
    with pytest.raises(WorkloadError, match=r"size|timeout_s"):
        BatchFill(**options)
