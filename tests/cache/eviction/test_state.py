"""When evictions are due, and what is remembered between them."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from infopt.cache.eviction import EvictionState, read_eviction
from infopt.cache.groups import KVGroup, KVLayout
from infopt.cache.manager import SequenceCache

LAYOUT = KVLayout((KVGroup((0,)), KVGroup((1,), window=8)), 1, 4, 1, 1, 4)


def plan(num_prompt: int, max_tokens: int = 50, **options: Any) -> EvictionState | None:
    config = read_eviction({"method": "streaming", "sinks": 1, **options})
    assert config is not None
    return EvictionState.plan(config, LAYOUT, num_prompt, max_tokens)


def cache_with(num_tokens: int, evicted: int = 0) -> SequenceCache:
    return SequenceCache([[], []], num_tokens=num_tokens, num_evicted=[evicted, 0])


def test_only_full_groups_are_evicted_from() -> None:
    state = plan(40, budget_tokens=20)
    assert state is not None and state.budgets == (20, None)


@pytest.mark.parametrize(
    ("num_prompt", "max_tokens", "decode", "expected"),
    [
        (20, 50, True, True),  # grows to 69 rows, 28 are the limit
        (20, 8, True, False),  # 27 rows: the last token has none
        (20, 9, True, True),
        (20, 50, False, False),  # the prompt fits
        (21, 50, False, True),
        (21, 1, False, False),  # nothing is decoded after the prompt
        (21, 0, False, False),
    ],
)
def test_nothing_is_planned_where_nothing_would_go(
    num_prompt: int, max_tokens: int, decode: bool, expected: bool
) -> None:
    state = plan(num_prompt, max_tokens, budget_tokens=20, decode=decode)
    assert (state is not None) == expected


def test_evictions_are_due_at_the_end_of_the_prompt_and_at_intervals() -> None:
    state = plan(30, budget_tokens=20, interval_pages=3)
    assert state is not None and state.interval == 12
    assert state.due(cache_with(29)) == []
    assert state.due(cache_with(30)) == [0]
    assert state.due(cache_with(30, 10)) == []
    assert state.due(cache_with(41, 10)) == []
    assert state.due(cache_with(42, 10)) == [0]
    assert state.room(cache_with(35, 10)) == 7


def test_a_prompt_within_the_budget_waits_for_the_interval() -> None:
    """Also when it is computed again with some of its output in one piece."""
    state = plan(18, budget_tokens=20, interval_pages=2)
    assert state is not None
    assert [n for n in range(18, 40) if state.due(cache_with(n))] == list(range(28, 40))


def test_queries_that_will_be_read_are_asked_for() -> None:
    """Those of the last tokens before an eviction, and with a window no others."""
    config = read_eviction({"method": "tova", "budget_tokens": 20, "interval_pages": 2})
    assert config is not None
    state = EvictionState.plan(config, LAYOUT, 30, 50)
    assert state is not None
    assert not state.wants_queries(cache_with(0), 0, 29)
    assert state.wants_queries(cache_with(0), 0, 30)
    assert state.wants_queries(cache_with(29), 29, 30)
    assert not state.wants_queries(cache_with(30, 10), 30, 31)
    assert not state.wants_queries(cache_with(36, 10), 36, 37)
    assert state.wants_queries(cache_with(36, 10), 36, 38)  # with a guess
    assert state.wants_queries(cache_with(37, 10), 37, 38)


def test_remembered_queries_are_the_newest_and_consecutive() -> None:
    config = read_eviction({"method": "snapkv", "budget": 0.5, "window": 5})
    assert config is not None
    state = EvictionState.plan(config, LAYOUT, 40, 8)
    assert state is not None
    queries = torch.arange(40.0).view(1, 40, 1)
    for start, end in ((0, 20), (20, 23), (23, 37), (37, 40)):
        state.add_queries(queries[:, start:end], start)
        assert state.query_end == end
    assert state.queries is not None
    assert state.queries.flatten().tolist() == [35, 36, 37, 38, 39]
    state.add_queries(queries[:, 10:12], 10)  # computed again after a preemption
    assert state.queries.flatten().tolist() == [10, 11]
    state.reset()
    assert state.num_queries == 0


def test_positions_are_those_that_were_kept_and_those_behind_them() -> None:
    state = plan(8, budget_tokens=4, interval_pages=1)
    assert state is not None
    shape, cpu = (1, 2), torch.device("cpu")
    before = state.row_positions(0, cache_with(8), shape, cpu)
    assert before.tolist() == [[list(range(8))] * 2]
    state.keep(0, torch.tensor([[[0, 5, 6, 7], [1, 3, 6, 7]]]), before)
    later = state.row_positions(0, cache_with(10, 4), shape, cpu)
    assert later.tolist() == [[[0, 5, 6, 7, 8, 9], [1, 3, 6, 7, 8, 9]]]
    state.keep(0, torch.tensor([[[0, 3, 4, 5], [1, 2, 4, 5]]]), later)
    again = state.row_positions(0, cache_with(11, 6), shape, cpu)
    assert again.tolist() == [[[0, 7, 8, 9, 10], [3, 6, 8, 9, 10]]]


def test_the_most_rows_after_an_eviction() -> None:
    growing = plan(30, budget_tokens=20, interval_pages=2)
    fixed = plan(30, budget_tokens=20, decode=False)
    assert growing is not None and fixed is not None
    assert growing.max_rows(0, 80) == 28
    assert fixed.max_rows(0, 80) == 70
    assert growing.max_rows(1, 80) == 80
    assert growing.max_rows(0, 25) == 25
