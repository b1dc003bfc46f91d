"""The constants of modelled energy, and what an order between two runs is worth."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from infopt.energy.model import Constant, EnergyConstants, energy_of, order_survives
from infopt.energy.reading import ModelledWork
from infopt.errors import ConfigError

amounts = st.floats(0, 1e3)
works = st.builds(ModelledWork, amounts, amounts, st.floats(0, 1e13))


def test_every_constant_has_a_source_and_lies_in_its_range() -> None:
    for name in EnergyConstants.__slots__:
        constant = getattr(EnergyConstants(), name)
        assert 0 < constant.low < constant.value < constant.high
        assert constant.source


@pytest.mark.parametrize("numbers", [(1, 2, 3), (3, 1, 2), (1, -1, 2), (float("nan"), 0, 2)])
def test_a_constant_outside_its_range_is_refused(numbers) -> None:
    with pytest.raises(ConfigError, match="low <= value <= high"):
        Constant(*numbers, "here")


def test_less_of_everything_is_less_energy_whatever_the_constants() -> None:
    assert order_survives(ModelledWork(1, 1, 1e9), ModelledWork(2, 1.5, 2e9))


def test_more_bytes_for_less_time_is_an_open_question() -> None:
    """One is better where memory is cheap, the other where it is dear."""
    assert not order_survives(ModelledWork(2.0, 2.0, 1e9), ModelledWork(1.0, 1.0, 30e9))


def test_equal_work_has_no_order() -> None:
    assert not order_survives(ModelledWork(1, 1, 1), ModelledWork(1, 1, 1))


@given(works, works, st.tuples(st.floats(0.45, 1.90), st.floats(1.17, 4.09), st.floats(31, 325)))
def test_a_surviving_order_holds_everywhere_in_the_box(first, second, constants) -> None:
    if not order_survives(first, second):
        return
    middle = EnergyConstants().joules(first) < EnergyConstants().joules(second)
    here, there = energy_of(first, *constants), energy_of(second, *constants)
    assert (here < there) == middle or here == pytest.approx(there, rel=1e-9)


OWN = {"value": 1.0, "low": 0.5, "high": 2.0, "source": "measured"}


@pytest.mark.parametrize(
    "constants",
    [
        {"idle_w_per_core": 0.9},
        {"idle_w_per_core": None},
        {"idle_w_per_core": {**OWN, "value": "1.0 W"}},
        {"idle_w_per_core": {**OWN, "low": None}},
        {"idle_w_per_core": {**OWN, "high": True}},
        {"idle_w_per_core": {**OWN, "source": 5}},
        [OWN],
    ],
)
def test_constants_of_the_wrong_type_are_named(constants) -> None:
    """Pins: a bare number in place of a constant with its range was a TypeError."""
    with pytest.raises(ConfigError, match=r"energy\.constants|low <= value"):
        EnergyConstants.from_dict(constants)
