"""The search of the highest sustained rate, over queues whose capacity is known."""

from __future__ import annotations

import numpy as np
import pytest

from infopt.bench.capacity import judge_rate, relaxed, search_capacity, waiting_growth
from infopt.bench.fixed_batches import BatchFill, run_fixed_batches
from infopt.bench.openloop import run_open_loop
from infopt.bench.slo import SLO
from infopt.errors import WorkloadError

SERVICE_S = 0.1
"""One server: 10 requests/s at most."""


@pytest.fixture
def queue(fake_engine, make_requests):
    def measure(rate: float, duration_s: float = 60.0):
        count = max(round(rate * duration_s), 2)
        gaps = np.random.default_rng(7).exponential(1 / rate, count)
        engine = fake_engine(plan=lambda _: [(SERVICE_S, 1)])
        requests = make_requests([0.0, *np.cumsum(gaps[1:]).tolist()])
        return run_open_loop(engine, requests, max_duration_s=1e6)

    return measure


def test_waiting_grows_by_the_excess_of_arrivals_over_service(queue):
    assert waiting_growth(queue(20.0)) == pytest.approx(1.0, abs=0.1)
    assert abs(waiting_growth(queue(5.0))) < 0.01


def test_answers_that_come_in_batches_are_no_growing_queue(fake_engine, make_requests):
    """Pins: fixed batches of a short run were taken for a server that falls behind."""
    engine = fake_engine(plan=lambda _: [(0.4, 1)], num_workers=32)
    requests = make_requests([0.05 * i for i in range(40)])
    result = run_fixed_batches(engine, requests, BatchFill(32))
    assert judge_rate(20.0, result, SLO(e2e_s=1.0), 0.9).is_good


@pytest.mark.parametrize("start", [0.5, 4.0, 60.0])
def test_the_search_ends_at_the_same_place_from_below_and_above(queue, start):
    found = search_capacity(queue, start, SLO(e2e_s=1.0), num_bisections=4, max_probes=12)
    assert 7 < found.rate_per_s < 10.5
    assert found.goodput_per_s <= 1 / SERVICE_S
    assert found.rate_per_s < found.first_bad_per_s


def test_a_growing_queue_is_no_capacity_however_long_the_limit(queue):
    """Pins: a short run ended before the queue had become too long, and any rate counted."""
    found = search_capacity(queue, 5.0, SLO(e2e_s=1e6), num_bisections=3)
    assert found.rate_per_s < 12.5
    assert found.first_bad_per_s is not None
    bad = [row for row in found.sweep.rows if row.rate_per_s >= found.first_bad_per_s]
    assert all(row.share.estimate == 1.0 and row.queue_grows for row in bad[-1:])


def test_where_no_rate_keeps_the_objective_its_goodput_is_zero_until_it_is_relaxed(queue):
    slo = SLO(e2e_s=SERVICE_S / 2, percentile=90)
    found = search_capacity(queue, 4.0, slo, max_probes=4)
    assert (found.best, found.goodput_per_s) == (None, 0.0)
    assert found.rate_per_s == pytest.approx(4.0 / 1.5**3)
    assert search_capacity(queue, 4.0, relaxed(slo, 4.0), max_probes=6).goodput_per_s > 1
    assert relaxed(slo, 4.0) == SLO(e2e_s=4 * SERVICE_S / 2, percentile=90)


def test_the_number_of_probes_is_limited(queue):
    found = search_capacity(queue, 0.01, SLO(e2e_s=1.0), max_probes=3, num_bisections=5)
    assert len(found.sweep.rows) == 3
    assert found.first_bad_per_s is None
    assert found.to_dict()["is_sustained"]


@pytest.mark.parametrize(
    "options",
    [{"start_rate": 0}, {"target_share": 1.0}, {"factor": 1.0}, {"max_probes": 0}],
)
def test_impossible_options_are_named(queue, options):
    with pytest.raises(WorkloadError, match=next(iter(options))):
        search_capacity(queue, **({"start_rate": 1.0, "slo": SLO(e2e_s=1.0)} | options))
