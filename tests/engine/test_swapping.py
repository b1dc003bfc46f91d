"""Host pages: copies out and back, room that is set aside for evictions, and what is given back."""

from __future__ import annotations

from typing import Any

import pytest

from infopt.cache.block_pool import NULL_PAGE
from infopt.cache.eviction import EvictionState, read_eviction
from infopt.cache.quantized_pages import PageNeed
from infopt.engine.eviction_room import host_pages_for
from infopt.engine.step_plan import StepPlan
from infopt.engine.swapping import HostPages, SwapSpace


def prompt(length: int, first: int = 1) -> list[int]:
    return [first, *range(2, length + 1)]


@pytest.mark.parametrize("windows", [(None,), (None, 6)])
def test_swapped_pages_balance(simulation, windows) -> None:
    sim = simulation(*windows, num_pages=20, num_swap_pages=64, preemption="swap", max_num_seqs=4)
    for first in (1, 2, 3):
        sim.add(prompt(8, first), max_tokens=24)
    sim.run()
    sim.check_outputs()
    out = sum(len(plan.swap_out) for plan in sim.plans)
    assert out == sum(len(plan.swap_in) for plan in sim.plans) > 0
    assert sim.scheduler.num_swap_fallbacks == 0
    computed = sum(plan.num_tokens for plan in sim.plans)
    assert computed == sum(len(s.token_ids) - 1 for s in sim.sequences)  # nothing twice


def test_full_host_memory_falls_back_to_recompute_and_is_counted(simulation) -> None:
    sim = simulation(num_pages=12, num_swap_pages=1, preemption="swap", max_num_seqs=4)
    for first in (1, 2, 3):
        sim.add(prompt(8, first), max_tokens=20)
    sim.run()
    sim.check_outputs()
    assert sim.scheduler.num_swap_fallbacks > 0


def test_null_pages_take_no_host_page_and_keep_their_place() -> None:
    pages, moves = HostPages(4), []
    hosts = pages.take([[7, NULL_PAGE, 9], [NULL_PAGE]], moves)
    assert [[host >= 0 for host in table] for table in hosts] == [[True, False, True], [False]]
    assert moves == [(7, hosts[0][0]), (9, hosts[0][2])]
    pages.check_integrity([hosts])
    with pytest.raises(AssertionError, match="lost"):
        pages.check_integrity([])
    pages.give_back(hosts)
    pages.check_integrity([None])


def evicting(sim: Any, length: int, first: int) -> Any:
    """A waiting sequence from which rows will be evicted."""
    (sequence,) = sim.add(prompt(length, first), max_tokens=20)
    config = read_eviction({"method": "streaming", "sinks": 1, "budget_tokens": 8})
    assert config is not None
    sequence.eviction = EvictionState.plan(config, sim.layout, length, 20)
    return sequence


def test_room_that_an_evicting_sequence_needs_is_nobody_elses(simulation) -> None:
    """Pins: a sequence whose rows were evicted found no host memory and could not be preempted."""
    sim = simulation(num_pages=40)
    first, second = evicting(sim, 16, 1), evicting(sim, 16, 2)
    (plain,) = sim.add(prompt(12, 3))
    needed = host_pages_for(first.eviction, sim.cache, 36).full
    swap = SwapSpace(sim.cache, PageNeed(needed + 1))
    assert swap.enter(first)
    assert swap.enter(first), "its room is counted once"
    assert not swap.enter(second)
    assert swap.enter(plain), "those that keep all rows need none"
    for sequence in (first, plain):
        assert sim.cache.allocate(sequence.cache, 8)
        sequence.cache.num_tokens = 8
    assert not swap.swap_out(plain, StepPlan()), "two pages, and one is not set aside"
    plan = StepPlan()
    assert swap.swap_out(first, plan)
    assert len(plan.swap_out) == 2
    swap.check_integrity([first, plain])
    swap.leave(first)
    assert swap.enter(second)
    assert len(swap.full.free) == needed + 1


def test_a_sequence_without_rows_has_nothing_to_swap(simulation) -> None:
    sim = simulation()
    (sequence,) = sim.add(prompt(12))
    assert not SwapSpace(sim.cache, PageNeed(8)).swap_out(sequence, StepPlan())


def test_room_of_an_ended_sequence_is_found(simulation) -> None:
    sim = simulation(num_pages=40)
    sequence = evicting(sim, 16, 1)
    swap = SwapSpace(sim.cache, PageNeed(50))
    assert swap.enter(sequence)
    swap.check_integrity([sequence])
    sim.abort(sequence)
    with pytest.raises(AssertionError, match="keeps room"):
        swap.check_integrity([])
