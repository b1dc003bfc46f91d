"""Random traffic over the scheduler: thousands of steps, every one checked.

Arrivals, lengths, early stops, aborts, failing steps and shared prefixes are random, under every
policy and in pools hardly larger than one request. After each step the invariants of pages, queues
and host memory hold, and every token has read exactly its own context; in the end every sequence
has finished once with the output it has alone, and every page is free or cached.
"""

from __future__ import annotations

import random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

MAX_PROMPT, MAX_OUTPUT = 40, 24
OPTIONS = st.fixed_dictionaries(
    {
        "max_num_seqs": st.integers(2, 6),
        "max_num_batched_tokens": st.integers(6, 24),
        "num_swap_pages": st.sampled_from([0, 20, 100]),
        "enable_prefix_caching": st.booleans(),
        "vocab_size": st.just(20),
        "num_drafts": st.sampled_from([0, 1, 3, 8]),
    }
)
QUIET = settings(
    max_examples=40, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True
)


def add_request(sim, rng: random.Random) -> None:
    """Half of a prompt or more is common to many; some completions stop early."""
    own = [1000 + len(sim.sequences), *range(2000, 2000 + MAX_PROMPT)]
    prompt = [*range(1, rng.choice([1, 9, 25])), *own][: rng.randint(1, MAX_PROMPT)]
    sim.add(
        prompt,
        rng.randint(1, MAX_OUTPUT),
        n=rng.choice([1, 1, 1, 3]),
        ignore_eos=rng.random() < 0.5,
    )


def play(sim, rng: random.Random, num_events: int) -> None:
    """Do anything at any time."""
    for _ in range(num_events):
        live = [s for s in sim.sequences if not s.is_finished]
        kind = rng.choices(["step", "add", "abort", "fail", "reset"], [70, 18, 8, 3, 1])[0]
        if kind == "add" or not live:
            add_request(sim, rng)
        elif kind == "step":
            assert sim.step().scheduled, "a step did nothing"
        elif kind == "abort":
            sim.abort(rng.choice(live))
        elif kind == "fail":
            sim.step(fails=lambda plan: True)
        else:
            sim.cache.reset_prefix_cache()


@pytest.mark.parametrize("scheduling", ["continuous", "static", "static_padded"])
@pytest.mark.parametrize("preemption", ["recompute", "swap"])
@pytest.mark.parametrize(("windows", "num_pages"), [((None,), 16), ((None, 7), 25)])
def test_any_traffic_ends_well(
    simulation, windows, num_pages: int, preemption: str, scheduling: str
) -> None:
    num_steps = num_preempted = num_guesses = 0

    @QUIET
    @given(OPTIONS, st.integers(0, 6), st.integers(0, 2**32), st.integers(10, 80))
    def traffic(options, extra_pages: int, seed: int, num_events: int) -> None:
        nonlocal num_steps, num_preempted, num_guesses
        sim = simulation(
            *windows,
            num_pages=num_pages + extra_pages,
            preemption=preemption,
            scheduling=scheduling,
            **options,
        )
        play(sim, random.Random(seed), num_events)
        useful = sum(len(s.token_ids) + s.num_remaining_tokens for s in sim.sequences)
        sim.run(max_steps=2 * useful)
        sim.check_outputs()
        computed = sum(i.num_known_tokens for plan in sim.plans for i in plan.scheduled)
        assert computed <= 2 * useful, "preemption repeats too much"
        num_steps += len(sim.plans)
        num_preempted += sum(len(plan.preempted) for plan in sim.plans)
        num_guesses += sum(len(i.draft) for plan in sim.plans for i in plan.scheduled)

    traffic()
    assert num_steps > 500
    assert num_guesses > 100
    assert num_preempted > 5


@pytest.mark.parametrize("preemption", ["recompute", "swap"])
def test_heavy_load_on_a_small_pool_makes_progress(simulation, preemption: str) -> None:
    """No starvation: 60 requests, more than fit at once, all started in order of arrival."""
    sim = simulation(
        None,
        7,
        num_pages=28,
        num_swap_pages=100,
        preemption=preemption,
        max_num_seqs=6,
        max_num_batched_tokens=12,
    )
    for i in range(60):
        shared = list(range(1, 1 + i % 3 * 6))
        sim.add([*shared, 100 + i, *range(i % 11)], max_tokens=1 + i * 7 % 25)
    sim.run()
    sim.check_outputs()
    first_steps: dict[int, int] = {}
    for step, plan in enumerate(sim.plans):
        for item in plan.scheduled:
            first_steps.setdefault(item.sequence.seq_id, step)
    assert sum(s.metrics.num_preemptions for s in sim.sequences) > 2
    assert [first_steps[i] for i in range(60)] == sorted(first_steps.values())
    tokens = sum(len(s.token_ids) for s in sim.sequences)
    assert sum(plan.num_tokens for plan in sim.plans) <= 2 * tokens
