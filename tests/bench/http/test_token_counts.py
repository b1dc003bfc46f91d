"""Tokens of an answer and of its pieces."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from infopt.bench.http.answer import Piece, StreamedAnswer
from infopt.bench.http.token_counts import count_answer, split_total
from infopt.bench.latency import Chunk


def answer(*pieces: Piece, **usage: int) -> StreamedAnswer:
    return StreamedAnswer(list(pieces), usage or None, "length", last_choice_s=9.0, finished_s=9.0)


def numbers(counted: object) -> list[int]:
    return [chunk.num_tokens for chunk in counted.chunks]  # type: ignore[attr-defined]


def test_total_is_the_servers_not_the_number_of_chunks() -> None:
    counted = count_answer(answer(Piece(1, "a"), Piece(2, "bbb"), completion_tokens=7), None)
    assert (counted.num_tokens, counted.source, counted.is_split_exact) == (7, "usage", False)
    assert numbers(counted) == [2, 5]  # 1.75 and 5.25


def test_as_many_pieces_as_tokens_are_one_each() -> None:
    counted = count_answer(answer(Piece(1, "long text"), Piece(2, "b"), completion_tokens=2), None)
    assert (numbers(counted), counted.is_split_exact) == ([1, 1], True)


def test_running_counts_are_used_as_they_are() -> None:
    """Some servers send the usage with every event; held-back text then counts when it is made."""
    pieces = (Piece(1, "x", True, 1), Piece(2, "", True, 4), Piece(3, "yyyyyy", True, 6))
    counted = count_answer(answer(*pieces, completion_tokens=6), None)
    assert counted.chunks == (Chunk(1, 1), Chunk(2, 3), Chunk(3, 2))
    assert counted.is_split_exact


def test_a_total_that_comes_with_the_last_text_is_no_running_count() -> None:
    pieces = (Piece(1, "aa"), Piece(2, "aa"), Piece(3, "aa", True, 6))
    counted = count_answer(answer(*pieces, completion_tokens=6), None)
    assert numbers(counted) == [2, 2, 2]


@pytest.mark.parametrize("usage", [{}, {"completion_tokens": 0}])
def test_without_a_count_the_tokenizer_counts_and_it_is_said(usage: dict[str, int]) -> None:
    counted = count_answer(
        answer(Piece(1, "a b"), Piece(2, "c"), **usage), lambda t: len(t.split())
    )
    assert (counted.num_tokens, counted.source) == (2, "tokenizer")  # of "a bc", not piece by piece
    assert count_answer(answer(Piece(1, "a b"), **usage), None).source == "pieces"


def test_tokens_without_text_came_with_the_end() -> None:
    """Special tokens have no text; the answer still had a first token."""
    counted = count_answer(answer(completion_tokens=3), None)
    assert counted.chunks == (Chunk(9.0, 3),)
    assert count_answer(answer(completion_tokens=0), None).num_tokens == 0
    assert count_answer(answer(), len).num_tokens == 0


@given(st.integers(1, 500), st.lists(st.integers(1, 50), min_size=1, max_size=40))
def test_shares_are_whole_add_up_and_leave_nobody_out(total: int, weights: list[int]) -> None:
    shares = split_total(total, weights)
    assert (sum(shares), len(shares)) == (total, len(weights))
    assert shares[0] >= 1
    assert min(shares) >= (1 if total >= len(weights) else 0)


def test_shares_follow_the_weights() -> None:
    assert split_total(8, [1, 1, 2]) == [2, 2, 4]
    assert split_total(7, [1, 3, 3]) == [1, 3, 3]
    assert split_total(4, [1, 100, 1]) == [1, 2, 1]
    assert split_total(2, [1, 1, 1]) == [1, 1, 0]
    assert split_total(3, []) == []
