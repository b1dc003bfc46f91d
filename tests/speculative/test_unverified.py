"""Guesses that were not verified are judged by the tokens that come."""

from __future__ import annotations

import torch

from infopt.engine.draft_control import DraftedPass
from infopt.engine.drafting import Draft, DraftRequest
from infopt.speculative.unverified import Unverified, can_be_compared


def request(text: list[int], seq_id: int = 3) -> DraftRequest:
    return DraftRequest(seq_id, text, 8)


def settled(guesses: list[int], came: list[int]) -> list[DraftedPass]:
    kept = Unverified()
    kept.note(request([9, 9]), guesses)
    found = kept.settle([request([9, 9, *came])])
    assert len(kept) == 0, "each draft is judged once"
    return found


def test_it_is_what_verifying_would_have_found() -> None:
    assert settled([1, 2, 3], [1, 2, 5, 3]) == [DraftedPass(3, 3, 2, 1)]
    assert settled([1, 2, 3], [7]) == [DraftedPass(3, 1, 0, 1)]
    assert settled([1, 2], [1, 2, 8]) == [DraftedPass(3, 2, 2, 1)]


def test_what_did_not_come_yet_is_not_judged() -> None:
    assert settled([1, 2, 3], [1]) == [DraftedPass(3, 1, 1, 1)]
    assert settled([1, 2, 3], []) == []


def test_others_wait_and_ended_outputs_are_forgotten() -> None:
    kept = Unverified()
    kept.note(request([9], seq_id=1), [4])
    kept.note(request([9], seq_id=2), Draft([5]))
    assert [p.seq_id for p in kept.settle([request([9, 5], seq_id=2)])] == [2]
    assert len(kept) == 1
    kept.forget(1)
    kept.forget(1)
    assert kept.settle([request([9, 4], seq_id=1)]) == []


def test_drawn_guesses_are_kept_more_often_than_they_equal_the_token() -> None:
    drawn = Draft([4], torch.ones(1, 8))
    assert not can_be_compared(drawn)
    assert not can_be_compared([])
    assert can_be_compared([4])
    kept = Unverified()
    kept.note(request([9]), drawn)
    assert len(kept) == 0
