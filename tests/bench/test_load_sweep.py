"""Load sweeps over a queue whose answer is known: one server, a fixed service time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from infopt.bench.load_result import LoadResult
from infopt.bench.load_sweep import sweep
from infopt.bench.openloop import run_open_loop
from infopt.bench.slo import SLO
from infopt.errors import WorkloadError

SERVICE_S = 0.1
SLO_2 = SLO(e2e_s=0.2)
"""A request may wait for as long as its own service takes."""


def waits(rate: float, count: int, seed: int) -> np.ndarray:
    """Return the waits of an M/D/1 queue by Lindley's recursion."""
    gaps = np.random.default_rng(seed).exponential(1 / rate, count)
    out = np.zeros(count)
    for i in range(1, count):
        out[i] = max(out[i - 1] + SERVICE_S - gaps[i], 0.0)
    return out


@pytest.fixture
def queue(fake_engine: Any, make_requests: Any) -> Callable[[float], LoadResult]:
    """M/D/1 on the virtual clock: 10 requests/s at most."""

    def measure(rate: float, count: int = 400) -> LoadResult:
        gaps = np.random.default_rng(7).exponential(1 / rate, count)
        engine = fake_engine(plan=lambda _: [(SERVICE_S, 1)])
        requests = make_requests([0.0, *np.cumsum(gaps[1:]).tolist()])
        return run_open_loop(engine, requests, max_duration_s=1e6)

    return measure


def test_saturation_of_a_queue_is_where_theory_has_it(queue: Any) -> None:
    found = sweep(queue, [1, 2, 4, 8, 16, 32], SLO_2, num_bisections=4)
    assert found.saturation.status == "bracketed"
    low, high = found.saturation.bracket
    assert low is not None and high is not None
    assert high / low == pytest.approx(2 ** (1 / 16))
    shares = [
        np.mean(waits(rate, 100_000, seed=1) <= SERVICE_S) for rate in (0.8 * low, 1.25 * high)
    ]
    assert shares[0] > 0.9 > shares[1]


def test_rise_ends_where_the_queue_grows(queue: Any) -> None:
    found = sweep(queue, [1, 2, 4, 8, 16, 32, 64], SLO_2)
    assert [row.rate_per_s for row in found.rows] == [1, 2, 4, 8, 16]
    assert found.skipped_per_s == (32, 64)
    assert [row.queue_grows for row in found.rows] == [False, False, False, False, True]
    assert found.rows[-1].achieved_rate_per_s == pytest.approx(10, rel=0.01)
    assert found.rows[0].goodput_per_s == pytest.approx(1, rel=0.1)
    ttfts = [row.latency.ttft.p90 for row in found.rows]
    assert ttfts == sorted(ttfts)


def test_every_rate_good_and_none_good(queue: Any) -> None:
    above = sweep(queue, [0.5, 1], SLO_2, num_bisections=2).saturation
    assert (above.status, above.bracket) == ("above", (1.0, None))
    assert "it takes more" in above.sentence()
    below = sweep(queue, [20, 40], SLO_2, num_bisections=2).saturation
    assert (below.status, below.bracket) == ("below", (None, 20.0))
    assert "even at 20" in below.sentence()


def test_rows_come_as_they_are_measured_and_are_plain_data(queue: Any) -> None:
    import json

    seen: list[float] = []
    found = sweep(
        queue, [2, 16], SLO_2, num_bisections=1, on_row=lambda r: seen.append(r.rate_per_s)
    )
    assert seen == [2, 16, pytest.approx(32**0.5)]
    document = json.loads(json.dumps(found.to_dict(), allow_nan=False))
    assert [row["rate_per_s"] for row in document["rows"]] == sorted(seen)
    assert document["rows"][0]["latency"]["e2e_s"]["count"] == 400
    assert document["saturation"]["is_decided"] in (True, False)


def test_failed_requests_count_against_a_rate(fake_engine: Any, make_requests: Any) -> None:
    def measure(rate: float) -> LoadResult:
        engine = fake_engine(plan=lambda _: [(SERVICE_S, 1)], max_num_waiting=1)
        return run_open_loop(engine, make_requests([i / rate for i in range(100)]))

    found = sweep(measure, [5, 50], SLO_2)
    assert found.rows[0].num_failed == 0
    assert found.rows[1].num_failed > 50
    assert found.rows[1].share.estimate < 0.5
    assert not found.rows[1].is_good


@pytest.mark.parametrize(
    ("rates", "options", "words"),
    [
        ([], {}, "at least one rate"),
        ([1, 1], {}, "must rise"),
        ([0.0], {}, "positive"),
        ([1], {"target_share": 1.0}, "target_share"),
        ([1], {"num_bisections": -1}, "num_bisections"),
    ],
)
def test_impossible_sweeps_are_refused(
    queue: Any, rates: list[float], options: dict[str, Any], words: str
) -> None:
    with pytest.raises(WorkloadError, match=words):
        sweep(queue, rates, SLO_2, **options)
