"""Shares of guesses given and kept, by hand."""

from __future__ import annotations

import numpy as np
import pytest

from infopt.engine.draft_control import DraftedPass
from infopt.speculative.acceptance import PRIOR_SHARE, Acceptance


def kept(acceptance: Acceptance, seq_id: int, judged: int, accepted: int, times: int = 1) -> None:
    for _ in range(times):
        acceptance.note_kept(DraftedPass(seq_id, judged, accepted, accepted + 1))


def test_before_anything_was_seen_guessing_is_tried() -> None:
    acceptance = Acceptance(3)
    assert acceptance.kept_shares() == [PRIOR_SHARE] * 3
    assert acceptance.given_shares() == [1.0] * 3
    assert acceptance.survival([7]) == pytest.approx(np.array([[0.5, 0.25, 0.125]]))


def test_shares_are_those_of_guesses_whose_predecessors_were_kept() -> None:
    """2 of 4 kept: the third was looked at and wrong, the fourth was not looked at."""
    acceptance = Acceptance(4)
    kept(acceptance, 1, judged=4, accepted=2, times=2000)
    shares = acceptance.kept_shares()
    assert shares[0] == pytest.approx(1.0, abs=0.01)
    assert shares[1] == pytest.approx(1.0, abs=0.01)
    assert shares[2] == pytest.approx(0.0, abs=0.01)
    assert shares[3] == shares[2], "nothing is known, so it goes on like the one before"


def test_an_output_is_judged_like_the_others_until_it_is_known() -> None:
    acceptance = Acceptance(2)
    kept(acceptance, 1, judged=2, accepted=2, times=300)
    unknown = acceptance.survival([5])[0, 0]
    assert unknown == pytest.approx(1.0, abs=0.01)
    chances = []
    for _ in range(3):
        kept(acceptance, 2, judged=2, accepted=0, times=10)
        chances.append(acceptance.survival([2])[0, 0])
    assert chances == sorted(chances, reverse=True)
    assert chances[-1] < 0.35
    assert acceptance.survival([1])[0, 0] > 0.9, "others keep their own share"


def test_what_comes_back_is_learned_by_position_and_output() -> None:
    acceptance = Acceptance(3)
    for _ in range(300):
        acceptance.note_given([1, 2], wanted=[3, 3], given=[2, 0])
    assert acceptance.given_shares() == pytest.approx([0.5, 0.5, 0.0], abs=0.02)
    rows = acceptance.availability([1, 2])
    assert rows[0, 0] > 0.8 > 0.2 > rows[1, 0]
    assert rows[0, 2] == pytest.approx(0.0, abs=0.02)
    acceptance.forget(1)
    assert acceptance.num_outputs == 1


def test_old_news_fade() -> None:
    acceptance = Acceptance(1)
    kept(acceptance, 1, judged=1, accepted=1, times=500)
    kept(acceptance, 1, judged=1, accepted=0, times=100)
    assert acceptance.survival([1])[0, 0] < 0.3
    kept(acceptance, 1, judged=1, accepted=0, times=900)
    assert acceptance.survival([1])[0, 0] < 0.02


def test_guesses_behind_the_end_of_an_output_are_not_judged() -> None:
    acceptance = Acceptance(3)
    kept(acceptance, 1, judged=1, accepted=1, times=400)
    assert acceptance.kept_shares()[2] == pytest.approx(1.0, abs=0.01)
