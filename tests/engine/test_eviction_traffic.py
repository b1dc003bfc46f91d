"""Random traffic with eviction, guesses, swapping, aborts and shared prefixes.

Every request ends as it does alone, whatever happens around it, and after each step pages, queues
and host memory add up.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from infopt import LLM, SamplingParams
from infopt.cache.quantized_pages import PageNeed

EVICTIONS: list[dict[str, Any] | None] = [
    None,
    {"method": "streaming", "budget_tokens": 9, "sinks": 2, "interval_pages": 1},
    {"method": "streaming", "budget_tokens": 12, "interval_pages": 1, "positions": "relative"},
    {"method": "h2o", "budget_tokens": 11, "interval_pages": 2},
    {"method": "tova", "budget_tokens": 8, "interval_pages": 1, "protected": 3},
    {"method": "snapkv", "budget": 0.5, "window": 6, "kernel": 3},
    {"method": "expected_attention", "budget": 0.3, "window": 16, "future": 8},
    {"method": "knorm", "budget_tokens": 6},
    {"method": "random", "budget": 0.4, "seed": 1},
]
QUANTIZED: dict[str, Any] = {
    "kv_cache_dtype": "int8",
    "kv_group_size": 16,
    "kv_residual": 24,
    "block_size": 8,
}
WITH_QUANTIZED: list[dict[str, Any] | None] = [
    None,
    {"method": "streaming", "budget_tokens": 47, "interval_pages": 1},
    {"method": "tova", "budget_tokens": 41, "interval_pages": 1, "protected": 3},
    {"method": "h2o", "budget_tokens": 45, "interval_pages": 1},
    {"method": "snapkv", "budget": 0.6, "window": 6, "kernel": 3},
    {"method": "knorm", "budget_tokens": 44},
]
REQUEST = st.tuples(
    st.integers(1, 3),  # shared parts of the prompt
    st.integers(0, 14),  # tokens of its own
    st.integers(1, 26),  # output
    st.integers(0, 39),  # how it is evicted from
    st.integers(1, 2),  # completions
)
EVENT = st.one_of(
    st.tuples(st.just("add"), REQUEST),
    st.tuples(st.just("add"), REQUEST),
    st.tuples(st.just("step"), st.integers(1, 6)),
    st.tuples(st.just("abort"), st.integers(0, 20)),
    st.tuples(st.just("reset"), st.just(0)),
)


class Traffic:
    """Drives one engine, and knows what each request gives alone."""

    def __init__(self, llm: LLM, alone: LLM) -> None:
        self.engine, self.alone = llm.engine, alone
        self.asked: dict[str, tuple[list[int], SamplingParams]] = {}
        self.done: dict[str, Any] = {}
        self.count = 0
        self.known: dict[str, Any] = {}
        self.is_quantized = llm.engine.cache.quantized is not None

    def add(self, request: tuple[int, int, int, int, int]) -> None:
        parts, own, max_tokens, choice, n = request
        evictions = WITH_QUANTIZED if self.is_quantized else EVICTIONS
        eviction, shared = (
            evictions[choice % len(evictions)],
            parts * (4 if self.is_quantized else 1),
        )
        prompt = [10, 11, 12, 13, 14, 10, 11, 12] * shared + [20 + i % 3 for i in range(own)]
        params = SamplingParams(
            n=n, temperature=0.8, seed=own, max_tokens=max_tokens, ignore_eos=True,
            kv_eviction=eviction,
        )  # fmt: skip
        name = str(self.count)
        self.count += 1
        self.asked[name] = (prompt, params)
        self.engine.add_request(name, prompt, params)

    def step(self, times: int) -> None:
        for _ in range(times):
            if self.engine.has_unfinished:
                for output in self.engine.step():
                    if output.finished:
                        self.done[output.request_id] = output
                self.engine.scheduler.check_integrity()

    def abort(self, name: int) -> None:
        self.engine.abort(str(name))

    def reset(self, _: int) -> None:
        self.engine.reset_prefix_cache()

    def finish(self) -> None:
        """Run to the end, and compare."""
        for _ in range(3000):
            if not self.engine.has_unfinished:
                break
            self.step(1)
        assert set(self.done) == set(self.asked), "a request starves"
        assert self.engine.cache.num_used_pages == PageNeed()
        for name, output in self.done.items():
            for found, expected in zip(output.outputs, self._alone(name), strict=True):
                count = len(found.token_ids)
                assert found.token_ids == expected[:count]
                assert found.finish_reason == "abort" or count == len(expected)

    def _alone(self, name: str) -> list[list[int]]:
        key = repr(self.asked[name])
        if key not in self.known:
            output = self.alone.generate(*self.asked[name], use_tqdm=False)[0]
            self.known[key] = [completion.token_ids for completion in output.outputs]
        return self.known[key]


@pytest.mark.parametrize(
    ("num_pages", "pages"), [(20, {}), (60, {}), (26, QUANTIZED), (90, QUANTIZED)]
)
@pytest.mark.parametrize("speculative", [None, {"method": "ngram", "prompt_lookup_min": 1}])
def test_every_request_ends_as_it_does_alone(
    make_llm: Callable[..., LLM],
    num_pages: int,
    pages: dict[str, Any],
    speculative: dict[str, Any] | None,
) -> None:
    torch.set_num_threads(1)
    common: dict[str, Any] = {"preemption": "swap", "max_num_seqs": 4, "max_model_len": 96}
    common |= {**pages, "max_model_len": 160} if pages else {}
    llm = make_llm(
        num_kv_pages=num_pages,
        max_num_batched_tokens=20,
        speculative=speculative,
        swap_memory_gib=0.0008 if pages else 0.0004,
        **common,
    )
    alone = make_llm(enable_prefix_caching=False, **common)
    known: dict[str, Any] = {}

    @settings(
        max_examples=20, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck)
    )
    @given(events=st.lists(EVENT, min_size=10, max_size=30))
    def check(events: list[tuple[str, Any]]) -> None:
        traffic = Traffic(llm, alone)
        traffic.known = known
        for kind, value in events:
            getattr(traffic, kind)(value)
        traffic.finish()
        llm.reset_prefix_cache()

    check()
    stats = llm.stats()
    assert stats["kv_eviction"]["evictions"] > 10
    assert num_pages != 20 or stats["preemptions"] > 0
