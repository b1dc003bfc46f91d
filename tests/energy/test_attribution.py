"""Energy by request: the parts add up exactly, and the shares are those of the formula."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from infopt.energy.attribution import (
    NJ_PER_J,
    ObservedStep,
    RequestEnergy,
    SplitModel,
    attribute,
    charge,
    split_whole,
    time_model,
)
from infopt.engine.observer import StepShare
from infopt.engine.stats import StepStats
from infopt.errors import MeasurementError

EVEN = SplitModel("flops", 1.0, 1.0)

weights = st.lists(st.floats(0, 1e9, allow_nan=False), min_size=1, max_size=30)


@settings(max_examples=200, deadline=None)
@given(st.integers(0, 10**15), weights)
def test_whole_parts_add_up_and_none_is_off_by_more_than_one(
    total: int, values: list[float]
) -> None:
    parts = split_whole(total, values)
    assert sum(parts) == total
    assert all(p >= 0 for p in parts)
    whole = sum(values)
    if whole > 0:
        tolerance = 1 + total * 1e-12
        for part, value in zip(parts, values, strict=True):
            assert abs(part - total * (value / whole)) <= tolerance
            assert value > 0 or part == 0 or total * 1e-12 > 1


shares = st.builds(
    StepShare,
    st.sampled_from("abcdef"),
    st.integers(0, 500),
    st.integers(0, 9),
    st.integers(0, 10**6),
    st.integers(0, 10**4),
)
steps = st.lists(
    st.tuples(st.floats(1e-6, 10.0), st.lists(shares, max_size=6)), min_size=0, max_size=12
)


@settings(max_examples=200, deadline=None)
@given(st.floats(1e-6, 1e6), st.floats(0, 50), steps)
def test_requests_and_idle_add_up_to_the_measured_energy_exactly(
    joules: float, seconds: float, drawn: list[tuple[float, list[StepShare]]]
) -> None:
    numbers = dict.fromkeys(StepStats.__slots__, 0)
    observed = [ObservedStep(StepStats(**{**numbers, "duration_s": d}), tuple(s)) for d, s in drawn]
    account = attribute(joules, seconds, observed, SplitModel("flops", 2.0, 3.0, 0.5))
    assert account.prefill_nj + account.decode_nj + account.idle_nj == account.total_nj
    assert account.total_nj == round(joules * NJ_PER_J)


def test_a_step_is_shared_by_tokens_within_each_phase(make_step, prefill, decode) -> None:
    """E_step * tokens_i / sum of tokens, prefill and decode apart."""
    step = ObservedStep(make_step(1.0), (prefill("a", 30), prefill("b", 10), decode("c", 60)))
    account = attribute(100.0, 1.0, [step], SplitModel("flops", 1.0, 1.0))
    assert account.requests["a"].prefill_nj == 30 * NJ_PER_J
    assert account.requests["b"].joules == 10.0
    assert account.requests["c"].decode_nj == 60 * NJ_PER_J
    assert account.idle_nj == 0


def test_steps_share_by_duration_and_gaps_are_idle(make_step, prefill, decode) -> None:
    steps = [
        ObservedStep(make_step(1.0), (prefill("a", 8),)),
        ObservedStep(make_step(2.0), (decode("a", 1),)),
    ]
    account = attribute(40.0, 4.0, steps, EVEN)
    assert account.requests["a"] == RequestEnergy(10 * NJ_PER_J, 20 * NJ_PER_J)
    assert account.idle_nj == 10 * NJ_PER_J


def test_a_mixed_step_follows_the_fitted_seconds_per_token(make_step, prefill, decode) -> None:
    """Prefill tokens take 1 ms, decode tokens 10 ms: FLOPs would call them equal."""
    steps = [
        ObservedStep(make_step(0.001 * p + 0.01 * d), (prefill("a", p), decode("b", d)))
        for p, d in ((100, 0), (0, 4), (50, 2), (10, 8), (0, 1))
    ]
    split = time_model(steps)
    assert split.name == "time"
    assert split.per_prefill_token == pytest.approx(0.001)
    assert split.per_decode_token == pytest.approx(0.01)
    mixed = ObservedStep(make_step(0.07), (prefill("a", 50), decode("b", 2)))
    account = attribute(7.0, 0.07, [mixed], split)
    assert account.requests["a"].joules == pytest.approx(5.0)
    assert account.requests["b"].joules == pytest.approx(2.0)


@pytest.mark.parametrize("read_s", [0.0, 0.02])
def test_no_phase_pays_more_in_company_than_alone(
    make_step, prefill, decode, read_s: float
) -> None:
    """Weights are read once for both phases of a step, and both have their part of what that saves.

    Pins: seconds per token alone left the reading to the outputs, which have steps of their own.
    """

    def seconds(p: int, d: int) -> float:
        return read_s + 0.001 * p + 0.002 * d

    kinds = [(0, d) for d in (1, 2, 4, 6, 6, 6)] + [(60, 0), (20, 0), (40, 5), (60, 6), (9, 4)]
    steps = [
        ObservedStep(
            make_step(seconds(p, d)), (*[prefill("a", p)] * (p > 0), *[decode("b", d)] * (d > 0))
        )
        for p, d in kinds
    ]
    split = time_model(steps)
    assert split.per_phase == pytest.approx(read_s, abs=1e-9)
    for p, d in ((40, 5), (60, 6), (9, 4)):
        step = ObservedStep(make_step(seconds(p, d)), (prefill("a", p), decode("b", d)))
        account = attribute(100 * seconds(p, d), seconds(p, d), [step], split)
        alone = 100 * seconds(p, 0), 100 * seconds(0, d)
        found = account.prefill_nj / NJ_PER_J, account.decode_nj / NJ_PER_J
        saved = sum(found) / sum(alone)
        assert saved == pytest.approx(1.0) if not read_s else saved < 0.95
        assert found == pytest.approx([saved * joules for joules in alone], rel=1e-6)


@pytest.mark.parametrize("kinds", [[(8, 0)] * 6, [(0, 1)] * 6, [(8, 0), (0, 1)]])
def test_steps_of_one_kind_tell_nothing_about_the_other(
    make_step, prefill, decode, kinds: list[tuple[int, int]]
) -> None:
    steps = [ObservedStep(make_step(0.1), (prefill("a", p), decode("b", d))) for p, d in kinds]
    with pytest.raises(MeasurementError, match="do not tell"):
        time_model(steps)


def test_a_step_without_tokens_belongs_to_nobody() -> None:
    requests: dict[str, RequestEnergy] = {}
    assert charge(77, (), EVEN, requests) == 77
    assert requests == {}
