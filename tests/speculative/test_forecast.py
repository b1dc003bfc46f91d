"""What a step is expected to take and to bring."""

from __future__ import annotations

import pytest

from infopt.engine.draft_control import DraftedPass, StepOutcome
from infopt.speculative.forecast import Forecast


def step(num_guesses: int = 0, seconds: float = 1.0, rows: int = 2) -> StepOutcome:
    passes = (DraftedPass(0, num_guesses, num_guesses, num_guesses + 1),) if num_guesses else ()
    return StepOutcome(rows, rows, num_guesses, seconds, 0.0, passes)


def test_a_step_without_guesses_comes_first_and_again() -> None:
    """Soon after the first ones, which are slow, and then rarely."""
    forecast = Forecast(4)
    assert forecast.needs_plain(2)
    gaps = []
    for _ in range(12):
        forecast.add(step())
        gaps.append(0)
        while not forecast.needs_plain(2):
            forecast.add(step(1))
            gaps[-1] += 1
    assert gaps[:3] == [16, 32, 48]
    assert gaps[-1] == 128
    assert forecast.needs_plain(3), "other steps tell nothing"


def test_a_scene_tells_decoding_from_reading_prompts() -> None:
    forecast = Forecast(4)
    for rows, seconds in ((2, 1.0), (3, 1.2), (100, 9.0)):
        forecast.add(step(seconds=seconds, rows=rows))
    decoding = forecast.scene(2, 1)
    assert decoding.is_decode
    assert (decoding.num_tokens, decoding.plain_s) == (3, 1.2)
    reading = forecast.scene(2, 98)
    assert not reading.is_decode
    assert (reading.plain_s, reading.step_s) == (9.0, 1.0)


def test_few_guesses_are_tried_at_first_then_twice_as_many() -> None:
    forecast = Forecast(16)
    forecast.add(step())
    for expected in (4, 8, 16):
        plan = forecast.plan(forecast.scene(2, 0), [0, 1], [16, 0], None, sunk_s=0.0)
        assert plan.lengths.tolist() == [expected, 0]
        for _ in range(30):
            forecast.add(step(expected))


def test_time_of_guesses_is_that_beyond_the_step() -> None:
    forecast = Forecast(8)
    for _ in range(4):
        forecast.add(step())
        forecast.add(step(2, 1.5))
        forecast.add(step(4, 2.0))
    assert forecast.extra_s(2, 2) == pytest.approx(0.5)
    assert forecast.extra_s(2, 4, 2) == pytest.approx(0.5)
    assert forecast.describe()["kept_shares"][0] == pytest.approx(0.9)
