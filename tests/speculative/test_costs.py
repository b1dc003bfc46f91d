"""Fitted times: what was seen, what lies between, and what is forgotten."""

from __future__ import annotations

import random

import numpy as np
import pytest

from infopt.speculative.costs import DraftCosts, StepCosts, size_class


def seen(costs: StepCosts, rows: int, guesses: int, seconds: float, times: int = 5) -> None:
    for _ in range(times):
        costs.add(rows, guesses, seconds)


def test_classes_are_fine_where_steps_are_small() -> None:
    assert [size_class(n) for n in range(1, 9)] == list(range(1, 9))
    classes = [size_class(n) for n in range(1, 513)]
    assert classes == sorted(classes)
    assert size_class(16) - size_class(8) == size_class(512) - size_class(256) == 4


def test_what_was_measured_is_expected() -> None:
    costs = StepCosts()
    seen(costs, 4, 0, 1.0)
    seen(costs, 4, 6, 1.3)
    assert costs.plain_s(4) == 1.0
    table = costs.table(4, 12)
    assert table[0] == 1.0
    assert table[6] == pytest.approx(1.3)
    assert costs.num_plain(4) == 5
    assert costs.num_plain(5) == 0
    assert costs.most_guesses(4) == 6


def test_between_measured_numbers_a_convex_curve_is_expected() -> None:
    """Flat to 8 guesses, then rising: the line from 0 to 16 would hide that 8 are free."""
    costs = StepCosts()
    seen(costs, 1, 0, 1.0)
    seen(costs, 1, 16, 2.0)
    seen(costs, 1, 20, 2.5)
    table = costs.table(1, 24)
    assert table[8] == pytest.approx(1.0)
    assert table[14] == pytest.approx(1.75)
    assert table[24] == pytest.approx(3.0)
    seen(costs, 1, 8, 1.4)
    assert costs.table(1, 24)[8] == pytest.approx(1.4)
    assert (np.diff(costs.table(1, 24)) >= 0).all()


def test_before_any_guess_other_rows_stand_for_them() -> None:
    costs = StepCosts()
    seen(costs, 1, 0, 1.0)
    seen(costs, 101, 0, 11.0)
    assert costs.table(1, 10)[10] == pytest.approx(2.0)


def test_another_batch_lends_its_difference() -> None:
    costs = StepCosts()
    seen(costs, 1, 0, 1.0)
    seen(costs, 1, 4, 1.2)
    seen(costs, 2, 0, 3.0)
    assert costs.table(2, 4)[4] == pytest.approx(3.2)
    seen(costs, 2, 4, 4.0)
    assert costs.table(2, 4)[4] == pytest.approx(4.0)


def test_times_that_fall_with_size_are_averaged() -> None:
    costs = StepCosts()
    seen(costs, 1, 0, 1.0)
    seen(costs, 1, 2, 1.4)
    seen(costs, 1, 4, 1.2)
    table = costs.table(1, 4)
    assert table[2] == pytest.approx(table[4]) == pytest.approx(1.3)
    seen(costs, 2, 0, 1.0)
    seen(costs, 2, 3, 0.8)
    assert costs.table(2, 3)[3] >= costs.table(2, 3)[0] == 1.0


def test_a_pause_moves_little_and_a_new_speed_is_followed() -> None:
    costs = StepCosts()
    seen(costs, 1, 0, 1.0, times=40)
    costs.add(1, 0, 60.0)
    assert costs.plain_s(1) < 1.1
    seen(costs, 1, 0, 2.0, times=100)
    assert costs.plain_s(1) == pytest.approx(2.0, rel=0.05)


def test_guesses_that_were_not_seen_for_long_are_forgotten() -> None:
    costs = StepCosts()
    seen(costs, 1, 0, 1.0)
    seen(costs, 1, 4, 3.0)
    assert costs.table(1, 4)[4] == pytest.approx(3.0)
    seen(costs, 1, 1, 1.5)
    seen(costs, 1, 0, 1.0, times=1100)
    assert costs.table(1, 4)[4] == pytest.approx(3.0), "the last one seen stays for longer"
    assert costs.most_guesses(1) == 1
    seen(costs, 1, 0, 1.0, times=8000)
    assert costs.table(1, 4)[4] == pytest.approx(1.0)
    assert costs.most_guesses(1) == 0


def test_description_holds_every_mean() -> None:
    costs = StepCosts()
    seen(costs, 2, 0, 1.0)
    seen(costs, 2, 3, 1.5)
    assert costs.describe() == [
        {"rows": 2.0, "guesses": 0.0, "seconds": 1.0, "steps": 5},
        {"rows": 2.0, "guesses": 3.0, "seconds": 1.5, "steps": 5},
    ]


@pytest.mark.parametrize(("per_output", "per_position"), [(2e-5, 0.0), (0.0, 1e-3), (1e-4, 5e-4)])
def test_parts_of_a_proposal_are_told_apart(per_output: float, per_position: float) -> None:
    costs, rng = DraftCosts(), random.Random(2)
    assert costs.seconds(4, 8) == 0
    for _ in range(200):
        outputs, longest = rng.randint(1, 16), rng.randint(1, 8)
        noise = 1 + rng.uniform(-0.05, 0.05)
        costs.add(outputs, longest, (per_output * outputs + per_position * longest) * noise)
    expected = per_output * 8 + per_position * 4
    assert costs.seconds(8, 4) == pytest.approx(expected, rel=0.1)
    assert costs.per_output_s == pytest.approx(per_output, abs=0.1 * (per_output + per_position))


def test_reading_a_prompt_is_no_cost_of_later_guesses() -> None:
    costs = DraftCosts()
    for _ in range(20):
        costs.add(1, 4, 1e-5)
    costs.add(1, 4, 5e-3)
    assert costs.seconds(1, 4) < 3e-5
