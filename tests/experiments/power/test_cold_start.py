"""The break-even of keeping warm, and what its range means."""

from __future__ import annotations

import pytest

from infopt.energy import EnergyConstants, EnergyReading, ModelledWork
from infopt.energy.model import energy_of, modelled_reading
from infopt.experiments.power.cold_start import break_even_figures

CONSTANTS = EnergyConstants()


def test_the_break_even_is_a_starts_energy_over_the_power_of_waiting():
    """Two starts of 60 J in all, 5 J in 10 s of waiting: 60 s, one request a minute."""
    starts, warm = EnergyReading("rapl", 60.0, 8.0), EnergyReading("rapl", 5.0, 10.0)
    found = break_even_figures(starts, warm, 2, CONSTANTS)
    assert found == {"hold_s": pytest.approx(60.0), "break_even_per_s": pytest.approx(1 / 60)}


def test_its_range_is_over_every_corner_of_the_constants():
    """Pins: with all constants low or all high the range did not hold the value itself.

    Waiting is idle power alone, a start is mostly busy cores: they are worst where one constant is
    low and the other high.
    """
    start, warm = ModelledWork(6.0, 4.0, 3e8), ModelledWork(1.0, 0.01, 0.0)
    readings = [modelled_reading(work, s, CONSTANTS) for work, s in ((start, 3.0), (warm, 0.5))]
    found = break_even_figures(*readings, 1, CONSTANTS)
    holds = [energy_of(start, *c) / (energy_of(warm, *c) / 0.5) for c in CONSTANTS.corners()]
    assert found["hold_s_low"] == pytest.approx(min(holds))
    assert found["hold_s_high"] == pytest.approx(max(holds))
    assert found["hold_s_low"] < found["hold_s"] < found["hold_s_high"]
    assert found["break_even_per_s_high"] == pytest.approx(1 / found["hold_s_low"])


def test_without_energy_there_is_no_break_even():
    none = EnergyReading.none("counter did not advance")
    found = break_even_figures(none, EnergyReading("rapl", 5.0, 10.0), 1, CONSTANTS)
    assert found == {"hold_s": None, "break_even_per_s": None}
