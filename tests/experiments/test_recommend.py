"""What a recommendation says about the runs on fresh seeds."""

from types import SimpleNamespace

import pandas as pd
import pytest

from infopt.experiments.recommend import baseline_gains
from infopt.experiments.select_spec import CONTINUOUS, STATIC

PAIRED = "comparison.goodput_requests_per_s"


@pytest.fixture
def table():
    """Capacities and validation of a choice that serves 40 requests/s, and of the baselines."""
    rows = []
    for name, rate, offered, goodput, ratio in (
        ("composed", 50.0, 44.0, 40.0, None),
        (STATIC, 12.0, 10.5, 8.0, 0.2),
        (CONTINUOUS, 29.0, 25.5, 20.0, 0.5),
    ):
        facts = {"extra.candidate": name, "seeds": [1, 2, 3, 4, 5]}
        found = {"extra.rate_per_s": rate, "extra.slo_factor": 1.0}
        found |= {"extra.batch_size": 32.0, "extra.timeout_s": 0.0}
        rows.append({"run": f"select/capacity.{name}", "extra.slice": "capacity", **facts, **found})
        tried = {
            "run": f"select/validation.{name}",
            "extra.slice": "validation",
            "slo.goodput_requests_per_s": goodput,
            "throughput.offered_requests_per_s": offered,
        }
        if ratio is not None:
            ends = {"median": ratio, "low": ratio / 2, "high": ratio * 1.25}
            tried |= {f"{PAIRED}.{end}": value for end, value in ends.items()}
        rows.append({**tried, **facts})
    return pd.DataFrame(rows)


@pytest.fixture
def choice():
    return SimpleNamespace(run="select/finalists.composed")


def test_a_baseline_is_told_with_the_load_that_it_had(table, choice):
    """Pins: the rate of the search was given, which is higher than that of the validation."""
    static, continuous = baseline_gains(table, choice)
    assert (static.name, continuous.name) == (STATIC, CONTINUOUS)
    assert (static.rate_per_s, continuous.rate_per_s) == (10.5, 25.5)
    assert "20 at 25.5 offered" in continuous.message


def test_the_gain_is_the_inverse_of_the_paired_ratio(table, choice):
    _, continuous = baseline_gains(table, choice)
    found = (continuous.ratio, continuous.low, continuous.high)
    assert found == pytest.approx((2.0, 1.6, 4.0))
    assert continuous.chosen_goodput_per_s == 40.0
