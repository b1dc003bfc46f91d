"""Drafters that look in the text itself, against searches by brute force."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from infopt.engine.drafting import DraftRequest
from infopt.speculative import make_drafter
from infopt.speculative.drafters.ngram import NgramIndex
from infopt.speculative.drafters.per_output import PerOutput, copy_from
from infopt.speculative.drafters.suffix import SuffixIndex, SuffixOptions

TEXTS = st.lists(st.integers(0, 3), min_size=1, max_size=60)


def continued(text: list[int], end: int, count: int) -> list[int]:
    """The text from ``end`` on, each new token at hand for the next."""
    grown = list(text)
    for i in range(count):
        grown.append(grown[end + i])
    return grown[len(text) :]


def lookup(text: list[int], sizes: list[int], count: int) -> list[int]:
    """Prompt lookup as it is told."""
    for size in sizes:
        for end in range(len(text) - 1, size - 1, -1):
            if size < len(text) and text[end - size : end] == text[-size:]:
                return continued(text, end, count)
    return []


def longest_repeat(text: list[int]) -> tuple[int, set[int]]:
    """Length of the longest end that occurs earlier, and where it ends there."""
    for size in range(len(text) - 1, 0, -1):
        ends = {e for e in range(size, len(text)) if text[e - size : e] == text[-size:]}
        if ends:
            return size, ends
    return 0, set()


@settings(max_examples=200, deadline=None, derandomize=True)
@given(TEXTS, st.integers(1, 3), st.integers(0, 2), st.integers(1, 8), st.randoms())
def test_ngram_finds_what_a_search_finds(text, smallest, more, count, rng) -> None:
    sizes = list(range(smallest + more, smallest - 1, -1))
    index, length = NgramIndex(sizes), 0
    while length < len(text):
        length = min(len(text), length + rng.randint(1, 5))
        known = text[:length]
        assert index.propose(known, count) == lookup(known, sizes, count)


@settings(max_examples=200, deadline=None, derandomize=True)
@given(TEXTS, st.integers(1, 3), st.integers(0, 3), st.integers(1, 8), st.randoms())
def test_suffix_finds_the_longest_repeat(text, smallest, factor, count, rng) -> None:
    options = SuffixOptions(min_match=smallest, max_spec_factor=factor)
    index, length = SuffixIndex(options), 0
    while length < len(text):
        length = min(len(text), length + rng.randint(1, 5))
        known = text[:length]
        found = index.propose(known, count)
        size, ends = longest_repeat(known)
        assert index.match[0] == size
        if size < smallest:
            assert found == []
            continue
        assert index.match[1] in ends
        wanted = min(count, factor * size) if factor else count
        assert found == continued(known, index.match[1], wanted)
        assert index.num_states <= 2 * length + 1


def test_suffix_prefers_the_latest_place() -> None:
    index = SuffixIndex(SuffixOptions())
    assert index.propose([1, 2, 7, 1, 2, 8, 5, 1, 2], 2) == [8, 5]
    assert index.propose([1, 2, 7, 1, 2, 8, 5, 1, 2, 9, 1, 2], 1) == [9]


def test_a_loop_is_continued_by_the_loop() -> None:
    loop = [9, 1, 2, 3, 1, 2, 3, 1, 2, 3]
    for options in ({"method": "ngram"}, {"method": "suffix"}):
        drafter = make_drafter(options | {"num_speculative_tokens": 8})
        assert drafter is not None
        assert drafter.propose([DraftRequest(0, loop, 8)]) == [[1, 2, 3, 1, 2, 3, 1, 2]]
    assert copy_from([5, 6, 7], 2, 3) == [7, 7, 7]


def test_a_loop_of_one_token_is_cheap_to_follow() -> None:
    """An automaton of equal tokens has a chain of links as long as the text."""
    index = SuffixIndex(SuffixOptions())
    assert index.propose([4] * 20_000, 3) == [4, 4, 4]
    assert index.num_states <= 40_001


@pytest.mark.parametrize("method", ["ngram", "suffix"])
def test_outputs_are_apart_and_forgotten(method: str) -> None:
    drafter = make_drafter({"method": method, "num_speculative_tokens": 3})
    assert isinstance(drafter, PerOutput)
    text = [1, 2, 3, 4, 1, 2]
    guesses = drafter.propose([DraftRequest(1, text, 2), DraftRequest(2, [1, 2], 3)])
    assert guesses == [[3, 4], []]
    assert drafter.propose([DraftRequest(2, [1, 2, 9, 1, 2], 9)]) == [[9, 1, 2]]
    assert drafter.num_outputs == 2
    drafter.forget(1)
    drafter.forget(1)
    drafter.forget(77)
    assert drafter.num_outputs == 1


@pytest.mark.parametrize("method", ["ngram", "suffix"])
def test_growing_in_any_steps_gives_the_same(method: str) -> None:
    rng = random.Random(3)
    text = [rng.randint(0, 2) for _ in range(80)]
    one, other = (make_drafter({"method": method}) for _ in range(2))
    assert one is not None
    assert other is not None
    for length in range(1, len(text) + 1):
        one.propose([DraftRequest(0, text[:length], 4)])
    last = DraftRequest(0, text, 4)
    assert one.propose([last]) == other.propose([last])
