import pytest

from infopt.bench.paired import run_paired
from infopt.errors import MeasurementError


def test_arms_take_turns_and_the_order_flips() -> None:
    calls: list[str] = []
    arms = {name: lambda name=name: calls.append(name) or 1.0 for name in ("a", "b", "c")}
    run_paired(arms, "a", 3, num_warmup=0)
    assert calls == ["a", "b", "c", "c", "b", "a", "a", "b", "c"]


def test_warmup_is_measured_but_not_used() -> None:
    values = {"a": iter([100.0, 1.0, 1.0]), "b": iter([900.0, 2.0, 2.0])}
    arms = {name: lambda v=v: next(v) for name, v in values.items()}
    result = run_paired(arms, "a", 2, num_warmup=1)
    assert result.samples == {"a": [1.0, 1.0], "b": [2.0, 2.0]}
    assert result.warmup == {"a": [100.0], "b": [900.0]}
    assert result.ratios["b"].median == 2.0
    assert set(result.ratios) == {"b"}


def test_a_machine_that_slows_down_does_not_decide() -> None:
    """Pins all of A before all of B: with a steady drift B loses although both are equal."""
    state = {"speed": 100.0}

    def measure() -> float:
        state["speed"] *= 0.97
        return state["speed"]

    alternating = run_paired({"a": measure, "b": measure}, "a", 10)
    assert alternating.ratios["b"].verdict == "undecided"
    assert alternating.ratios["b"].median == pytest.approx(1, abs=0.005)
    state["speed"] = 100.0
    first = [measure() for _ in range(10)]
    second = [measure() for _ in range(10)]
    assert max(second) < min(first)


def test_a_real_difference_is_found_in_both_directions() -> None:
    arms = {"slow": lambda: 2.0, "fast": lambda: 1.0}
    seconds = run_paired(arms, "slow", 6, higher_is_better=False)
    assert seconds.ratios["fast"].verdict == "better"
    rates = run_paired(arms, "slow", 6, higher_is_better=True)
    assert rates.ratios["fast"].verdict == "worse"


def test_before_each_runs_outside_the_measurement() -> None:
    seen: list[str] = []
    run_paired({"a": lambda: 1.0, "b": lambda: 1.0}, "a", 1, before_each=seen.append)
    assert seen == ["a", "b", "a", "b"]


def test_result_as_plain_data() -> None:
    data = run_paired({"a": lambda: 1.0, "b": lambda: 3.0}, "a", 6).to_dict()
    assert data["ratios"]["b"] == {
        "median": 3.0, "low": 3.0, "high": 3.0, "num_pairs": 6, "verdict": "better"
    }  # fmt: skip
    assert data["samples"]["b"] == [3.0] * 6


def test_bad_calls_are_refused() -> None:
    with pytest.raises(MeasurementError, match="Did you mean 'base'"):
        run_paired({"base": lambda: 1.0}, "bse", 1)
    with pytest.raises(MeasurementError, match="repeats >= 1"):
        run_paired({"a": lambda: 1.0}, "a", 0)
    with pytest.raises(MeasurementError, match=r"candidate\[0\] is 0.0"):
        run_paired({"a": lambda: 1.0, "b": lambda: 0.0}, "a", 1)


def test_an_arm_that_fails_fails_the_run() -> None:
    def broken() -> float:
        raise OSError("no space left")

    with pytest.raises(OSError, match="no space left"):
        run_paired({"a": lambda: 1.0, "b": broken}, "a", 1)
