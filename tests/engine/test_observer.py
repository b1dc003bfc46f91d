"""Observers see every step and what it computed for whom."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from infopt.engine.observer import StepShare
from infopt.engine.stats import StepStats
from infopt.sampling_params import SamplingParams


class Watcher:
    """Keeps what it is told."""

    def __init__(self, engine: Any) -> None:
        self.engine = engine
        self.num_started = 0
        self.seen: list[tuple[StepStats, list[StepShare]]] = []

    def step_started(self) -> None:
        self.num_started += 1

    def step_ended(self, step: StepStats, shares: Sequence[StepShare]) -> None:
        self.seen.append((step, list(shares)))


def serve(llm: Any, num_requests: int = 3) -> Watcher:
    watcher = Watcher(llm.engine)
    llm.engine.observers.append(watcher)
    for i in range(num_requests):
        params = SamplingParams(temperature=0, max_tokens=4, ignore_eos=True)
        llm.engine.add_request(f"r{i}", list(range(1, 12 + i)), params)
    while llm.engine.has_unfinished:
        llm.engine.step()
    llm.engine.observers.remove(watcher)
    return watcher


def test_shares_add_up_to_the_step(make_llm) -> None:
    watcher = serve(make_llm(max_num_batched_tokens=16, max_num_seqs=2))
    assert watcher.num_started == len(watcher.seen) > 4
    for step, shares in watcher.seen:
        assert sum(s.num_prefill_tokens for s in shares) == step.num_prefill_tokens
        decode_tokens = step.num_decode_tokens + step.num_draft_tokens
        assert sum(s.num_decode_tokens for s in shares) == decode_tokens
        pairs = sum(s.num_prefill_pairs + s.num_decode_pairs for s in shares)
        assert pairs == step.num_attention_pairs


def test_every_request_is_charged_for_its_own_tokens(make_llm) -> None:
    options = {"max_num_batched_tokens": 16, "max_num_seqs": 3, "enable_prefix_caching": False}
    watcher = serve(make_llm(**options))
    for i in range(3):
        own = [s for _, shares in watcher.seen for s in shares if s.request_id == f"r{i}"]
        assert sum(s.num_prefill_tokens for s in own) == 11 + i
        assert sum(s.num_decode_tokens for s in own) == 3  # the first comes with the prompt


def test_an_engine_without_observers_counts_no_steps(make_llm) -> None:
    llm = make_llm()
    llm.generate([[1, 2, 3]], SamplingParams(max_tokens=2, ignore_eos=True))
    assert llm.engine.step_log is None
    assert llm.engine.observers == []
