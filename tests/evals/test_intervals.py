import numpy as np
import pytest

from infopt.errors import MeasurementError
from infopt.evals.intervals import (
    bootstrap_mean,
    bootstrap_ratio,
    mcnemar_p_value,
    wilson_interval,
)


@pytest.mark.parametrize(
    ("correct", "total", "low", "high"),
    [
        # Closed forms: 0 of n gives [0, z²/(n+z²)], n of n its mirror image.
        (0, 10, 0.0, 3.841458820694124 / 13.841458820694124),
        (10, 10, 10 / 13.841458820694124, 1.0),
        # SciPy 1.17: binomtest(k, n).proportion_ci(method="wilson").
        (5, 10, 0.2365930905, 0.7634069094),
        (81, 263, 0.2552885199, 0.3662095770),
        (15, 148, 0.0623863995, 0.1604872417),
    ],
)
def test_wilson_check_values(correct, total, low, high):
    interval = wilson_interval(correct, total)
    assert interval.low == pytest.approx(low, abs=1e-9)
    assert interval.high == pytest.approx(high, abs=1e-9)


@pytest.mark.parametrize(("correct", "total"), [(0, 0), (-1, 5), (6, 5)])
def test_wilson_refuses_impossible_counts(correct, total):
    with pytest.raises(MeasurementError, match="items"):
        wilson_interval(correct, total)


@pytest.mark.parametrize(
    ("lost", "gained", "p"),
    [(0, 0, 1.0), (1, 0, 1.0), (5, 0, 0.0625), (8, 2, 112 / 1024), (2, 8, 112 / 1024), (3, 3, 1.0)],
)
def test_mcnemar_check_values(lost, gained, p):
    assert mcnemar_p_value(lost, gained) == pytest.approx(p)


def test_bootstrap_is_seeded_and_covers_a_known_mean():
    """Coverage of 200 intervals: 0.95 +- 0.06 is four standard deviations of the count."""
    rng = np.random.default_rng(3)
    hits = 0
    for i in range(200):
        interval = bootstrap_mean(rng.normal(2.0, 1.0, size=60), seed=i)
        hits += interval.low <= 2.0 <= interval.high
    assert 0.88 <= hits / 200 <= 1.0
    values = rng.normal(size=20)
    assert bootstrap_mean(values, seed=1) == bootstrap_mean(values, seed=1)
    assert bootstrap_mean(values, seed=1) != bootstrap_mean(values, seed=2)


def test_bootstrap_ratio_of_equal_units_has_no_width():
    interval = bootstrap_ratio(np.array([2.0, 4.0, 6.0]), np.array([1.0, 2.0, 3.0]))
    assert interval.low == pytest.approx(2.0)
    assert interval.high == pytest.approx(2.0)


def test_one_unit_has_no_interval():
    assert bootstrap_ratio(np.array([1.0]), np.array([2.0])) is None
