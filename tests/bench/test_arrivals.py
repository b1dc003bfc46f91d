import numpy as np
import pytest

from infopt.bench.arrivals import arrival_times
from infopt.errors import ConfigError, WorkloadError


def times(spec, count: int, seed: int = 0) -> np.ndarray:
    return np.array(arrival_times(spec, count, np.random.default_rng(seed)))


def test_all_at_once() -> None:
    assert times("all-at-once", 3).tolist() == [0, 0, 0]


def test_constant_gaps() -> None:
    assert times({"kind": "constant", "rate": 4}, 4).tolist() == [0, 0.25, 0.5, 0.75]


def test_bursts_keep_the_rate() -> None:
    burst = times({"kind": "burst", "rate": 6, "burst_size": 3}, 9)
    assert burst.tolist() == [0, 0, 0, 0.5, 0.5, 0.5, 1, 1, 1]


@pytest.mark.parametrize(
    ("spec", "cv"),
    [
        ({"kind": "poisson", "rate": 5}, 1.0),
        ({"kind": "gamma", "rate": 5, "cv": 0.5}, 0.5),
        ({"kind": "gamma", "rate": 5, "cv": 2.0}, 2.0),
    ],
)
def test_random_gaps_have_the_asked_rate_and_variation(spec, cv: float) -> None:
    gaps = np.diff(times(spec, 40_000))
    assert gaps.mean() == pytest.approx(0.2, rel=0.03)
    assert gaps.std() / gaps.mean() == pytest.approx(cv, rel=0.03)
    assert (gaps >= 0).all()


def test_a_seed_fixes_the_schedule() -> None:
    spec = {"kind": "poisson", "rate": 50}
    assert times(spec, 500, seed=1).tolist() == times(spec, 500, seed=1).tolist()
    assert times(spec, 500, seed=1).tolist() != times(spec, 500, seed=2).tolist()


def test_a_longer_schedule_begins_like_a_shorter_one() -> None:
    spec = {"kind": "gamma", "rate": 3, "cv": 2}
    assert times(spec, 20)[:7].tolist() == times(spec, 7).tolist()


def test_no_requests_have_no_times() -> None:
    assert arrival_times("all-at-once", 0, np.random.default_rng(0)) == []


@pytest.mark.parametrize(
    ("spec", "error", "message"),
    [
        ({"kind": "poison", "rate": 1}, ConfigError, "Did you mean 'poisson'"),
        ({"kind": "poisson", "rps": 1}, ConfigError, "Unknown option 'rps'"),
        ("poisson", WorkloadError, "needs 'rate'"),
        ({"kind": "poisson", "rate": 0}, WorkloadError, "rate must be a positive number, got 0"),
        ({"kind": "poisson", "rate": True}, WorkloadError, "rate must be"),
        ({"kind": "burst", "rate": 1, "burst_size": 0}, WorkloadError, "burst_size"),
        (None, WorkloadError, "needs a kind, got None"),
    ],
)
def test_bad_specifications_name_the_option(spec, error, message) -> None:
    with pytest.raises(error, match=message):
        times(spec, 3)
