"""When to look, whose turn it is, and what that may take."""

from __future__ import annotations

import pytest

from infopt.speculative.tries import Pauses, Tries


def test_tries_have_their_share_of_the_time() -> None:
    tries = Tries(0.02)
    for _ in range(100):
        tries.grow(1.0, step_s=1.0)
    assert tries.left_s == pytest.approx(2.0)
    tries.charge(0.5)
    assert (tries.left_s, tries.spent_s) == (pytest.approx(1.5), 0.5)
    tries.charge(-0.25)
    assert tries.spent_s == 0.25, "tokens of a try are worth something"
    for _ in range(10_000):
        tries.grow(1.0, step_s=1.0)
    assert tries.left_s == 8.0, "nothing is saved up for long"


def test_the_output_without_guesses_for_longest_is_next() -> None:
    tries = Tries(0.02)
    assert tries.longest_idle([7, 8, 9], range(3)) == 0
    tries.note([7])
    tries.note([9, 8])
    assert tries.longest_idle([7, 8, 9], range(3)) == 0
    assert tries.longest_idle([7, 8, 9], [1, 2]) == 1
    assert tries.longest_idle([7, 8, 9, 5], range(4)) == 3
    tries.forget(8)
    assert tries.longest_idle([7, 8, 9], range(3)) == 1


def test_a_try_that_is_too_dear_comes_later() -> None:
    tries = Tries(0.02)
    assert tries.num_steps_until(0.5, step_s=1.0) == 25
    tries.grow(20.0, step_s=1.0)
    assert tries.num_steps_until(0.5, step_s=1.0) == 5
    assert tries.num_steps_until(0.1, step_s=1.0) == 0
    assert Tries(0.0).num_steps_until(0.5, step_s=1.0) == 1000


def looks(pauses: Pauses, num_steps: int, num_running: int = 4) -> int:
    """Look in vain whenever it is time; return how often it was."""
    count = 0
    for _ in range(num_steps):
        if pauses.is_over(num_running):
            count += 1
            pauses.look_less()
    return count


def test_looks_become_rare_and_do_not_cease() -> None:
    pauses = Pauses()
    assert looks(pauses, 10) >= 5
    looks(pauses, 200)
    assert looks(pauses, 320) == 10
    pauses.look_closer()
    assert looks(pauses, 4) >= 2


def test_fewer_outputs_are_a_reason_to_look() -> None:
    pauses = Pauses()
    looks(pauses, 300)
    assert looks(pauses, 10, num_running=4) <= 1
    assert pauses.is_over(2)
    pauses.wait(5)
    assert [pauses.is_over(2) for _ in range(6)] == [False] * 5 + [True]


def test_of_few_outputs_the_next_one_is_looked_at_soon() -> None:
    for num_running, soon in ((1, True), (64, False)):
        pauses = Pauses()
        looks(pauses, 300, num_running)
        while not pauses.is_over(num_running):
            pass
        pauses.look_less()
        pauses.output_ended()
        assert any(pauses.is_over(num_running) for _ in range(3)) == soon
