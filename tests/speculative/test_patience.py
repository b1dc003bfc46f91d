"""How late an output may be for the sake of others."""

from __future__ import annotations

import numpy as np
import pytest

from infopt.speculative.patience import Patience

STEP_S = 1.0
NEW = 0.25


def room(patience: Patience, now_s: float, *seq_ids: int) -> list[float]:
    return patience.room_s(seq_ids, now_s, STEP_S).tolist()


def test_a_new_output_waits_for_part_of_a_step() -> None:
    assert room(Patience(0.1), 5.0, 1, 2) == [NEW, NEW]


def test_delays_use_room_up_and_time_gives_it_back() -> None:
    patience = Patience(0.1)
    patience.note([1, 2], np.array([-0.15, 0.2]), 10.0, STEP_S)
    assert room(patience, 10.0, 1, 2) == pytest.approx([-0.15, 0.2])
    assert room(patience, 12.0, 1, 2) == pytest.approx([0.05, NEW])
    assert room(patience, 99.0, 1) == [NEW], "time fills it up to what a new one has"


def test_savings_and_debts_have_an_end() -> None:
    patience = Patience(0.1)
    patience.note([1, 2], np.array([1e3, -1e3]), 0.0, STEP_S)
    saved, late = room(patience, 0.0, 1, 2)
    assert saved == 16 * STEP_S
    assert late == -STEP_S
    assert room(patience, 50.0, 1) == [saved], "what was saved does not grow"


def test_ended_outputs_are_forgotten() -> None:
    patience = Patience(0.1)
    patience.note([1], np.array([-0.5]), 0.0, STEP_S)
    patience.forget(1)
    patience.forget(1)
    assert room(patience, 0.0, 1) == [NEW]
