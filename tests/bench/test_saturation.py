"""The saturation point of judged rates, and why it may be undecided."""

from __future__ import annotations

from typing import Any

from infopt.bench.latency import summarize_latency
from infopt.bench.saturation import SweepRow, saturation_of
from infopt.bench.stats import proportion_interval


def row(rate: float, num_met: int, num_requests: int = 100, **changes: Any) -> SweepRow:
    share = proportion_interval(num_met, num_requests)
    values = {
        "rate_per_s": rate,
        "offered_rate_per_s": rate,
        "achieved_rate_per_s": rate,
        "goodput_per_s": rate * share.estimate,
        "share": share,
        "is_good": share.estimate >= 0.9,
        "is_certain": not share.low <= 0.9 <= share.high,
        "queue_grows": False,
        "latency": summarize_latency([]),
        "num_requests": num_requests,
        "num_failed": 0,
        "warnings": (),
    }
    return SweepRow(**(values | changes))


def test_few_requests_decide_nothing() -> None:
    """19 of 20 requests within the objective may well be 80 % of all."""
    unsure = saturation_of([row(1, 19, 20), row(2, 100, 1000)], 0.9)
    assert not unsure.is_decided
    assert "at 1 requests/s 95% of 20" in unsure.sentence()
    sure = saturation_of([row(1, 100), row(2, 50)], 0.9)
    assert (sure.is_decided, sure.bracket) == (True, (1, 2))


def test_a_rate_that_is_good_again_is_a_doubt() -> None:
    found = saturation_of([row(4, 100), row(1, 100), row(2, 10)], 0.9)
    assert found.bracket == (1, 2)
    assert found.doubts == ("it was kept again at 4 requests/s",)
