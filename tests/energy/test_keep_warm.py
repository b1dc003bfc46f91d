"""Keeping warm against starting on demand: the formulas, and what holding bounds."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from infopt.energy.keep_warm import KeepWarm
from infopt.errors import ConfigError

positive = st.floats(0.01, 1e4)


def test_at_the_break_even_both_take_the_same() -> None:
    """30 J for a start and 1.5 W of waiting: 20 s, three requests a minute."""
    point = KeepWarm(start=30.0, warm_per_s=1.5)
    assert point.hold_s == pytest.approx(20.0)
    assert point.break_even_per_s == pytest.approx(0.05)
    assert point.warm_per_request(point.break_even_per_s) == pytest.approx(30.0)


@given(positive, positive, st.floats(1e-4, 1e3))
def test_holding_the_break_even_never_takes_twice_the_better_of_both(start, power, rate) -> None:
    point = KeepWarm(start, power)
    better = min(point.start, point.warm_per_request(rate))
    assert point.hold_per_request(rate) <= 2 * better * (1 + 1e-9)


def test_holding_is_the_mean_over_poisson_gaps() -> None:
    point, rate, hold = KeepWarm(10.0, 2.0), 0.1, 7.0
    gaps = np.random.default_rng(0).exponential(1 / rate, 400_000)
    each = np.where(gaps > hold, 2.0 * hold + 10.0, 2.0 * gaps)
    assert point.hold_per_request(rate, hold) == pytest.approx(float(each.mean()), rel=0.01)


@pytest.mark.parametrize("values", [(0.0, 1.0), (1.0, -1.0), (math.nan, 1.0), (1.0, math.inf)])
def test_impossible_values_are_refused(values) -> None:
    with pytest.raises(ConfigError, match="KeepWarm"):
        KeepWarm(*values)


@pytest.mark.parametrize("rate", [0.0, -1.0, math.inf, math.nan, None])
def test_without_requests_there_is_nothing_per_request(rate) -> None:
    """Pins: a rate of 0 was a division by zero."""
    point = KeepWarm(10.0, 2.0)
    for per_request in (point.warm_per_request, point.hold_per_request):
        with pytest.raises(ConfigError, match="requests_per_s"):
            per_request(rate)
