import pytest

from infopt.errors import MeasurementError
from infopt.evals.intervals import wilson_interval
from infopt.evals.tasks.outcome import ItemOutcome, TaskResult, compare_outcomes


def result(pattern: str, margin: float | None = None, protocol: str = "p") -> TaskResult:
    outcomes = [ItemOutcome(str(i), mark == "1", "", "", margin) for i, mark in enumerate(pattern)]
    return TaskResult("t", protocol, tuple(outcomes))


def test_record_of_a_task():
    data = result("1101").to_dict()
    interval = wilson_interval(3, 4)
    assert data == {"score": 0.75, "low": interval.low, "high": interval.high, "n": 4}
    assert result("10").to_dict(with_items=True)["items"] == {"0": 1, "1": 0}


def test_paired_comparison_counts_items_not_scores():
    """Equal scores may hide that every answer changed."""
    paired = compare_outcomes(result("1010"), result("0101"))
    assert (paired.num_lost, paired.num_gained, paired.difference) == (2, 2, 0.0)
    assert paired.p_value == 1.0


def test_a_clear_loss_is_significant():
    paired = compare_outcomes(result("1" * 20), result("1" * 10 + "0" * 10))
    assert paired.difference == -0.5
    assert paired.p_value == pytest.approx(2 / 2**10)
    assert paired.low is not None and paired.high is not None
    assert paired.low < paired.high < 0


def test_margins_are_compared_where_there_are_any():
    assert compare_outcomes(result("11", 1.0), result("11", 0.25)).margin_change == -0.75
    assert compare_outcomes(result("11"), result("11")).margin_change is None


@pytest.mark.parametrize("other", [result("110"), result("11", protocol="q")])
def test_different_items_do_not_compare(other):
    with pytest.raises(MeasurementError, match="not about the same items"):
        compare_outcomes(result("11"), other)
