"""The search that the last stage makes with each arm, over queues whose capacity is known."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from infopt.bench.fixed_batches import BatchFill, run_fixed_batches
from infopt.bench.openloop import run_open_loop
from infopt.bench.slo import SLO
from infopt.experiments import capacity_search
from infopt.experiments.capacity_search import RateSearch, tune_fixed_batches

SERVICE_S = 0.1
"""One worker after the other: with one of them, 10 requests/s at most."""
SEARCH = {"duration_s": 60.0, "min_requests": 20, "target_share": 0.9, "num_bisections": 2}


@pytest.fixture
def search_with(fake_engine, make_requests, monkeypatch):
    """A search on an imitation that serves ``num_workers`` requests at a time."""

    def arrivals(llm, workload, rate, search, seed):
        gaps = np.random.default_rng(7).exponential(1 / rate, round(rate * search["duration_s"]))
        return make_requests(np.cumsum(gaps).tolist())

    monkeypatch.setattr(capacity_search, "requests_at", arrivals)

    class FakeArm:
        def __init__(self, num_workers):
            self.num_workers, self.fill, self.num_runs = num_workers, None, 0
            self.llm, self.requests = None, [make_requests([0.0] * 40)]

        def serve(self, requests):
            self.num_runs += 1
            engine = fake_engine(plan=lambda _: [(SERVICE_S, 1)], num_workers=self.num_workers)
            if self.fill is not None:
                return run_fixed_batches(engine, requests, self.fill, max_duration_s=1e6)
            return run_open_loop(engine, requests, max_duration_s=1e6)

    def make(num_workers, slo):
        spec = SimpleNamespace(options={"search": SEARCH}, workloads={"load": {}}, seeds=(0,))
        return RateSearch(FakeArm(num_workers), spec, slo)

    return make


@pytest.mark.parametrize("num_workers", [1, 4])
def test_it_starts_near_the_capacity_and_ends_within_six_percent_of_it(search_with, num_workers):
    search = search_with(num_workers, SLO(e2e_s=5.0))
    closed = search.closed_rate()
    assert closed == pytest.approx(num_workers / SERVICE_S)
    found = search.search(closed)
    assert found.first_bad_per_s / found.rate_per_s < 1.06
    assert 0.8 * closed < found.rate_per_s < 1.2 * closed
    assert len(search.probes) <= 5


def test_a_rate_is_measured_once(search_with):
    search = search_with(1, SLO(e2e_s=5.0))
    assert search.measure(5.0) is search.measure(5.0)
    assert search.arm.num_runs == 1
    search.arm.fill = BatchFill(2)
    search.measure(5.0)
    assert search.arm.num_runs == 2, "other batches are another setting"


def test_batches_are_tuned_to_the_size_that_keeps_the_objective(search_with):
    search = search_with(8, SLO(e2e_s=2.0))
    best = tune_fixed_batches(search, [1, 2, 8], [0.1])
    assert search.arm.fill.size == 8
    assert best.rate_per_s > 4 / SERVICE_S


def test_where_no_rate_is_kept_the_limits_are_relaxed_until_one_is(search_with):
    search = search_with(1, SLO(e2e_s=SERVICE_S / 2))
    found = tune_fixed_batches(search, [1], [])
    assert found.best is None
    factor = search.relaxation()
    assert 2.0 < factor < 60
    samples = search.samples()
    assert len({len(values) for values in samples.values()}) == 1
    assert set(samples["search.batch_size"]) == {1.0}
