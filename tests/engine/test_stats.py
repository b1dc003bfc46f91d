"""Counts of a step, and how its time is split."""

from __future__ import annotations

import pytest

from infopt.engine.clock import VirtualClock
from infopt.engine.stats import EngineStats, StepTimer, count_step


def brute_pairs(start: int, count: int, window: int | None) -> int:
    """Pairs of a computed token and a key it may see."""
    return sum(
        1
        for i in range(start, start + count)
        for j in range(i + 1)
        if window is None or j > i - window
    )


def test_a_step_counts_tokens_pairs_and_pages(simulation) -> None:
    sim = simulation(None, 6, max_num_batched_tokens=16)
    sim.add(list(range(1, 10)), max_tokens=6)
    sim.step()
    sim.step()
    sim.add([50, *range(1, 30)], max_tokens=6)
    plan = sim.step()
    stats = count_step(plan, sim.scheduler, 2, StepTimer(VirtualClock()))
    spans = [(item.start, item.num_tokens) for item in plan.scheduled]
    assert spans == [(10, 1), (0, 15)]
    assert (stats.num_seqs, stats.num_decode_tokens, stats.num_prefill_tokens) == (2, 1, 15)
    assert stats.num_tokens == 16
    assert stats.num_attention_pairs == sum(brute_pairs(*span, None) for span in spans)
    assert stats.num_window_pairs == sum(brute_pairs(*span, 6) for span in spans)
    assert stats.num_context_tokens == 11 + 15
    # Rows read under the window: those any token of the chunk sees.
    assert stats.num_window_tokens == 6 + 15
    assert stats.num_pages_used == sim.cache.pool.num_used
    assert (stats.num_running, stats.num_waiting, stats.num_preemptions) == (2, 0, 0)
    assert stats.num_logit_rows == 2


@pytest.mark.parametrize(("start", "count"), [(0, 1), (0, 9), (3, 4), (20, 1), (17, 8)])
def test_window_rows_are_those_that_some_token_sees(simulation, start: int, count: int) -> None:
    sim = simulation(6, max_num_batched_tokens=64)
    sim.add(list(range(1, start + count + 1)), max_tokens=1)
    if start:
        sim.config = sim.scheduler.config = sim.config.replace(
            max_num_batched_tokens=start, max_num_seqs=1
        )
        sim.step()
        sim.config = sim.scheduler.config = sim.config.replace(max_num_batched_tokens=64)
    plan = sim.step()
    stats = count_step(plan, sim.scheduler, 1, StepTimer(VirtualClock()))
    seen = {j for i in range(start, start + count) for j in range(max(i - 5, 0), i + 1)}
    assert stats.num_window_tokens == len(seen)


def test_stored_tokens_show_fragmentation(simulation) -> None:
    sim = simulation(block_size=16, max_num_batched_tokens=64)
    for length in (1, 16, 17):
        sim.add([length] * length, max_tokens=4)
    plan = sim.step()
    stats = count_step(plan, sim.scheduler, 0, StepTimer(VirtualClock()))
    assert stats.num_pages_used == 4
    assert stats.num_tokens_in_pages == 34


def test_time_is_split_without_a_gap() -> None:
    clock = VirtualClock(5.0)
    timer = StepTimer(clock)
    for mark, seconds in ((timer.scheduled, 1), (timer.forwarded, 2), (timer.sampled, 4)):
        clock.advance(seconds)
        mark()
    clock.advance(8)
    timer.forwarded()
    assert (timer.schedule_s, timer.forward_s, timer.sample_s) == (1, 10, 4)
    assert timer.total_s == 15
    assert timer.start_s == 5


def test_the_hit_rate_is_unknown_before_the_first_prompt() -> None:
    assert EngineStats().prefix_hit_rate is None
    assert EngineStats(num_prompt_tokens=8, num_cached_tokens=2).prefix_hit_rate == 0.25
