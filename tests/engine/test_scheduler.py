"""What each step computes: order, limits, preemption, completions of one prompt."""

import pytest

from infopt.engine.sequence import SequenceStatus


def prompt(length: int, first: int = 1) -> list[int]:
    return [first, *range(2, length + 1)]


def scheduled(plan) -> list[tuple[int, int, int]]:
    """``(sequence id, start, tokens)`` of each part of a step."""
    return [(item.sequence.seq_id, item.start, item.num_tokens) for item in plan.scheduled]


def test_prefill_chunks_and_decodes_share_a_step_decodes_first(simulation) -> None:
    sim = simulation(max_num_seqs=4, max_num_batched_tokens=10)
    sim.add(prompt(4))
    sim.add(prompt(15, 2))
    assert scheduled(sim.step()) == [(0, 0, 4), (1, 0, 6)]
    assert scheduled(sim.step()) == [(0, 4, 1), (1, 6, 9)]
    sim.add(prompt(3, 3))
    assert scheduled(sim.step()) == [(0, 5, 1), (1, 15, 1), (2, 0, 3)]
    sim.run()
    sim.check_outputs()


def test_a_decode_is_never_pushed_out_by_an_older_prefill(simulation) -> None:
    """The long prompt came first, but sequences that already speak go on in every step."""
    sim = simulation(max_num_seqs=4, max_num_batched_tokens=4)
    sim.add(prompt(3))
    sim.step()
    sim.add(prompt(30, 2))
    for _ in range(4):
        assert scheduled(sim.step())[0][0] == 0
    sim.run()


@pytest.mark.parametrize("max_num_seqs", [1, 2, 5])
def test_requests_start_in_order_of_arrival(simulation, max_num_seqs: int) -> None:
    sim = simulation(max_num_seqs=max_num_seqs, max_num_batched_tokens=9, num_pages=12)
    for i in range(8):
        sim.add(prompt(1 + (i * 7) % 20, i + 1), max_tokens=1 + i % 5)
    sim.run()
    sim.check_outputs()
    started = [i for plan in sim.plans for i, *_ in scheduled(plan)]
    assert list(dict.fromkeys(started)) == list(range(8))


def test_nobody_overtakes_a_request_that_does_not_fit_yet(simulation) -> None:
    sim = simulation(num_pages=8)
    sim.add(prompt(16), max_tokens=4)
    big, small = sim.add(prompt(20, 2), 4)[0], sim.add(prompt(2, 3), 4)[0]
    sim.step()
    assert [big.status, small.status] == [SequenceStatus.WAITING] * 2
    sim.run()
    sim.check_outputs()


@pytest.mark.parametrize("preemption", ["recompute", "swap"])
@pytest.mark.parametrize("budget", [4, 32])
def test_two_that_fit_alone_but_not_together_both_finish(
    simulation, preemption: str, budget: int
) -> None:
    """Pins: requests preempted each other for ever and none could finish."""
    sim = simulation(
        num_pages=16,
        num_swap_pages=16,
        preemption=preemption,
        max_num_batched_tokens=budget,
        max_num_seqs=4,
    )
    for first in (1, 2):
        sim.add(prompt(10, first), max_tokens=45)
    sim.run(max_steps=200)
    sim.check_outputs()
    assert 1 <= sum(s.metrics.num_preemptions for s in sim.sequences) <= 3


@pytest.mark.parametrize("preemption", ["recompute", "swap"])
def test_a_preempted_sequence_returns_once_and_not_chunk_by_chunk(
    simulation, preemption: str
) -> None:
    """Pins: a long preempted sequence was readmitted when its first chunk had room, ran out of
    pages in the middle of its prompt, and began anew in every step.
    """
    sim = simulation(
        num_pages=34,
        num_swap_pages=34,
        preemption=preemption,
        max_num_batched_tokens=8,
        max_num_seqs=4,
        enable_prefix_caching=False,
    )
    sim.add(prompt(20), max_tokens=60)
    sim.add(prompt(100, 2), max_tokens=10)
    sim.run(max_steps=400)
    sim.check_outputs()
    assert [s.metrics.num_preemptions for s in sim.sequences] == [0, 1]


def test_the_youngest_is_preempted(simulation) -> None:
    sim = simulation(num_pages=10, max_num_seqs=4)
    for first in (1, 2, 3):
        sim.add(prompt(8, first), max_tokens=20)
    sim.run_until(lambda: sim.plans and sim.plans[-1].preempted)
    assert [s.seq_id for s in sim.plans[-1].preempted] == [2]
    assert sim.scheduler.waiting[0].seq_id == 2
    sim.run()
    sim.check_outputs()


def test_preempted_sequences_queue_in_order_of_arrival(simulation) -> None:
    sim = simulation(num_pages=12, max_num_seqs=4, max_num_batched_tokens=64)
    for first in (1, 2, 3, 4):
        sim.add(prompt(8, first), max_tokens=30)
    sim.add(prompt(3, 5))
    sim.run()  # checks the queue after each step
    sim.check_outputs()
    assert max(len(plan.preempted) for plan in sim.plans) >= 1


def test_preempted_sequences_find_their_own_pages(simulation) -> None:
    """Pins: the tokens planned before the hit were stale when a sequence met its own old pages."""
    sim = simulation(num_pages=24, max_num_seqs=8, max_num_batched_tokens=64)
    for first in range(8):
        sim.add([*range(30, 42), first + 1], max_tokens=16)
    sim.run()
    sim.check_outputs()
    assert any(s.metrics.num_preemptions for s in sim.sequences)


@pytest.mark.parametrize("length", [3, 8, 9, 40])
def test_completions_wait_for_their_leader_and_share_its_prompt(simulation, length: int) -> None:
    sim = simulation(max_num_batched_tokens=16)
    children = sim.add(prompt(length), max_tokens=4, n=3)
    sim.run()
    sim.check_outputs()
    found = (length - 1) // 4 * 4
    assert [s.num_cached_tokens for s in children] == [0, found, found]
    assert len({tuple(s.output_token_ids) for s in children}) == 3


def test_completions_without_prefix_cache_do_not_wait(simulation) -> None:
    sim = simulation(enable_prefix_caching=False)
    sim.add(prompt(6), n=3)
    assert len(sim.step().scheduled) == 3
    sim.run()
    sim.check_outputs()


@pytest.mark.parametrize("state", ["waiting", "mid prompt", "decoding", "preempted", "finished"])
@pytest.mark.parametrize("preemption", ["recompute", "swap"])
def test_a_sequence_can_be_aborted_in_every_state(simulation, state: str, preemption: str) -> None:
    sim = simulation(
        num_pages=8,
        num_swap_pages=8,
        preemption=preemption,
        max_num_batched_tokens=8,
        max_num_seqs=4,
    )
    sim.add(prompt(8), max_tokens=16)
    victim = sim.add(prompt(10, 2), max_tokens=12)[0]
    sim.add(prompt(2, 3), max_tokens=2)
    reached = {
        "waiting": lambda: True,
        "mid prompt": lambda: 0 < victim.cache.num_tokens < 10,
        "decoding": lambda: victim.is_decoding,
        "preempted": lambda: victim.metrics.num_preemptions,
        "finished": lambda: victim.is_finished,
    }[state]
    sim.run_until(reached)
    sim.abort(victim)
    assert victim.cache.num_pages == 0
    assert victim.host_pages is None
    sim.run()
    sim.check_outputs()


def test_the_leader_can_be_aborted_before_its_completions_start(simulation) -> None:
    sim = simulation(max_num_batched_tokens=8)
    leader, *_ = sim.add(prompt(30), max_tokens=4, n=3)
    sim.step()
    sim.abort(leader)
    sim.run()
    sim.check_outputs()


@pytest.mark.parametrize(("windows", "num_pages"), [((None,), 26), ((None, 6), 32), ((6, 9), 22)])
@pytest.mark.parametrize("preemption", ["recompute", "swap"])
def test_a_failed_step_ends_its_sequences_and_no_others(
    simulation, windows, num_pages: int, preemption: str
) -> None:
    """Pins: copies that a failed step never made were taken for swapped-out content later."""
    sim = simulation(
        *windows, num_pages=num_pages, num_swap_pages=80, preemption=preemption, max_num_seqs=4
    )
    for first in (1, 2, 3, 4):
        sim.add(prompt(8, first), max_tokens=24)
    while sim.scheduler.has_unfinished and not any(plan.preempted for plan in sim.plans):
        sim.step(fails=lambda plan: plan.preempted)
    failed = {item.sequence.seq_id for item in sim.plans[-1].scheduled}
    assert 1 <= len(failed) < 4
    sim.run()
    sim.check_outputs()
    assert {s.seq_id for s in sim.sequences if s.finish_reason == "error"} == failed
