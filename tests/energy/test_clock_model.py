"""Energy over the clock: E(f) = (P0 + a f^3)(t0 + c / f) has its least value inside."""

import numpy as np
import pytest

from infopt.energy.clock_model import ClockModel, ClockPoint, fit_clock_model
from infopt.errors import MeasurementError

MODEL = ClockModel(t0_s=2.0, c=3000.0, p0_w=90.0, a=3e-8)


def points(model: ClockModel, clocks) -> list[ClockPoint]:
    return [ClockPoint(f, model.seconds(f), model.joules(f)) for f in clocks]


def test_the_fit_gives_back_what_made_the_points() -> None:
    found = fit_clock_model(points(MODEL, (600, 900, 1200, 1600, 1980)))
    for name in ClockModel.__slots__:
        assert getattr(found, name) == pytest.approx(getattr(MODEL, name), rel=1e-6)


def test_the_optimum_is_inside_and_no_clock_beats_it() -> None:
    best = MODEL.best_clock(300, 1980)
    grid = np.linspace(300, 1980, 5000)
    assert 300 < best < 1980
    assert MODEL.joules(best) <= min(MODEL.joules(f) for f in grid) * (1 + 1e-9)
    assert best == pytest.approx(grid[np.argmin([MODEL.joules(f) for f in grid])], abs=1)


def test_without_idle_power_slowest_is_best_and_without_switching_fastest() -> None:
    assert ClockModel(1.0, 1000.0, 0.0, 1e-8).best_clock(300, 1980) == 300
    assert ClockModel(1.0, 1000.0, 90.0, 0.0).best_clock(300, 1980) == 1980


def test_too_few_clocks_and_another_shape_are_refused() -> None:
    with pytest.raises(MeasurementError, match="three clocks"):
        fit_clock_model(points(MODEL, (600, 600, 900)))
    falling = [ClockPoint(f, 1.0 + f / 1000, 100.0) for f in (600, 900, 1200)]
    with pytest.raises(MeasurementError, match="do not follow"):
        fit_clock_model(falling)
