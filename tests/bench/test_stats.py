import numpy as np
import pytest

from infopt.bench.stats import (
    MIN_PAIRS_FOR_VERDICT,
    _student_t_quantile,
    bootstrap_interval,
    paired_ratio,
    percentile,
    percentiles,
    proportion_interval,
)
from infopt.errors import MeasurementError


@pytest.mark.parametrize(("percent", "needed"), [(50, 2), (90, 10), (99, 100), (99.9, 1000)])
def test_percentiles_refuse_samples_too_small_for_them(percent: float, needed: int) -> None:
    assert percentile(list(range(needed - 1)), percent) is None
    assert percentile(list(range(needed)), percent) is not None


def test_percentiles_of_a_ramp() -> None:
    summary = percentiles([float(i) for i in range(101)])
    assert (summary.p50, summary.p90, summary.p99) == pytest.approx((50, 90, 99))
    assert summary.mean == 50
    assert summary.count == 101


def test_percentiles_of_nothing() -> None:
    assert percentiles([]).to_dict() == {
        "p50": None, "p90": None, "p99": None, "mean": None, "count": 0
    }  # fmt: skip


def test_percentiles_refuse_values_that_are_not_finite() -> None:
    with pytest.raises(MeasurementError, match=r"samples\[1\] is nan"):
        percentiles([1.0, float("nan")])


def test_bootstrap_is_reproducible_and_depends_on_the_seed() -> None:
    samples = np.random.default_rng(0).normal(size=15).tolist()
    assert bootstrap_interval(samples) == bootstrap_interval(samples)
    first, second = (bootstrap_interval(samples, np.mean, seed=s) for s in (1, 2))
    assert (first.low, first.high) != (second.low, second.high)
    assert first.estimate == second.estimate


def test_bootstrap_of_one_sample_is_that_sample() -> None:
    interval = bootstrap_interval([3.0])
    assert (interval.estimate, interval.low, interval.high, interval.count) == (3.0, 3.0, 3.0, 1)


@pytest.mark.parametrize("statistic", [np.median, np.mean])
@pytest.mark.parametrize("count", [6, 8, 12])
def test_intervals_of_small_samples_miss_the_truth_in_at_most_5_percent(statistic, count) -> None:
    """Pins a fault of the plain percentile bootstrap: at these sizes it misses in 6 to 12 %."""
    rng = np.random.default_rng(count)
    misses = 0
    for _ in range(600):
        interval = bootstrap_interval(rng.normal(size=count).tolist(), statistic, num_resamples=500)
        misses += not interval.low <= 0 <= interval.high
    # 5 % of 600 is 30; 45 is three standard deviations above.
    assert misses <= 45


def test_student_t_quantiles_agree_with_tables() -> None:
    z = 1.959964
    for df, expected in [(4, 2.7764), (5, 2.5706), (9, 2.2622), (30, 2.0423)]:
        assert _student_t_quantile(z, df) == pytest.approx(expected, rel=4e-3)


def test_paired_ratio_is_taken_pair_by_pair() -> None:
    """A drift that both arms share cancels; a ratio of the two means would keep it."""
    drift = [1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0]
    ratio = paired_ratio(drift, [2 * d for d in drift], higher_is_better=True)
    assert (ratio.median, ratio.low, ratio.high) == (2.0, 2.0, 2.0)
    assert ratio.verdict == "better"
    assert ratio.num_pairs == 7


def test_verdict_follows_the_direction() -> None:
    reference, candidate = [1.0] * 8, [0.8, 0.81, 0.79, 0.8, 0.82, 0.8, 0.78, 0.8]
    assert paired_ratio(reference, candidate, higher_is_better=False).verdict == "better"
    assert paired_ratio(reference, candidate, higher_is_better=True).verdict == "worse"


def test_an_interval_that_straddles_1_is_undecided() -> None:
    noisy = [0.8, 1.3, 0.9, 1.2, 1.1, 0.95, 1.05, 1.4]
    ratio = paired_ratio([1.0] * 8, noisy, higher_is_better=True)
    assert ratio.low < 1 < ratio.high
    assert ratio.verdict == "undecided"


def test_too_few_pairs_are_undecided() -> None:
    """Three repeats that all favour the candidate happen by chance in 1 of 4 experiments."""
    for count in range(1, MIN_PAIRS_FOR_VERDICT):
        ratio = paired_ratio([1.0] * count, [2.0] * count, higher_is_better=True)
        assert ratio.verdict == "undecided"
    count = MIN_PAIRS_FOR_VERDICT
    assert paired_ratio([1.0] * count, [2.0] * count, higher_is_better=True).verdict == "better"


@pytest.mark.parametrize(
    ("reference", "candidate", "message"),
    [
        ([1.0, 1.0], [1.0], "as many"),
        ([], [], "reference is empty"),
        ([0.0], [1.0], r"reference\[0\] is 0.0"),
        ([1.0], [float("inf")], r"candidate\[0\] is inf"),
        ([1.0], [-1.0], r"candidate\[0\] is -1.0"),
    ],
)
def test_paired_ratio_refuses_what_has_no_ratio(reference, candidate, message) -> None:
    with pytest.raises(MeasurementError, match=message):
        paired_ratio(reference, candidate, higher_is_better=True)


@pytest.mark.parametrize(
    ("successes", "n", "low", "high"),
    [
        (8, 10, 0.49016, 0.94332),
        (0, 10, 0.0, 0.27753),
        (10, 10, 0.72247, 1.0),
        (1, 2, 0.09453, 0.90547),
    ],
)
def test_wilson_interval(successes: int, n: int, low: float, high: float) -> None:
    interval = proportion_interval(successes, n)
    assert (interval.low, interval.high) == pytest.approx((low, high), abs=1e-5)
    assert interval.estimate == successes / n
    assert interval.count == n


@pytest.mark.parametrize(("successes", "n"), [(1, 0), (-1, 5), (6, 5)])
def test_impossible_proportions_are_refused(successes: int, n: int) -> None:
    with pytest.raises(MeasurementError, match=f"{successes} of {n}"):
        proportion_interval(successes, n)


def test_confidence_given_in_percent_is_refused() -> None:
    with pytest.raises(MeasurementError, match=r"as 0\.95"):
        proportion_interval(1, 2, confidence=95)
