"""Eviction beside quantized pages: kept rows are coded anew, and everything else stays true."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
import torch

from infopt import LLM, SamplingParams

PAGES: dict[str, Any] = {"kv_group_size": 16, "kv_residual": 32, "block_size": 8}
GREEDY = SamplingParams(temperature=0, max_tokens=40, ignore_eos=True, logprobs=2)
EVICTIONS: list[dict[str, Any]] = [
    {"method": "streaming", "budget_tokens": 61, "sinks": 3, "interval_pages": 2},
    {"method": "tova", "budget_tokens": 72, "interval_pages": 1},
    {"method": "snapkv", "budget": 0.5, "window": 8, "kernel": 3, "protected": [[5, 9]]},
    {"method": "expected_attention", "budget": 0.45, "window": 40, "future": 16},
    {"method": "h2o", "budget_tokens": 57, "interval_pages": 2},
    {"method": "knorm", "budget_tokens": 50},
    {"method": "random", "budget_tokens": 20},
]
PROMPTS = [random.Random(i).choices(range(4, 40), k=k) for i, k in enumerate((130, 97, 160, 33))]


def facts(llm: LLM, prompts: Any, params: Any) -> list[Any]:
    outputs = llm.generate(prompts, params, use_tqdm=False)
    return [(c.token_ids, c.logprobs, c.finish_reason) for o in outputs for c in o.outputs]


@pytest.fixture
def make(make_llm: Callable[..., LLM]) -> Callable[..., LLM]:
    """Factory of engines with int8 pages that may swap."""

    def build(**options: Any) -> LLM:
        common = {"preemption": "swap", "kv_cache_dtype": "int8", "num_kv_pages": 300, **PAGES}
        return make_llm(**(common | options))

    return build


@pytest.mark.parametrize("eviction", EVICTIONS, ids=lambda e: e["method"])
@pytest.mark.parametrize("kv_cache_dtype", ["int8", "int4", "fp8_e4m3"])
def test_bits_depend_on_the_request_alone(
    make: Callable[..., LLM], eviction: dict[str, Any], kv_cache_dtype: str
) -> None:
    params = GREEDY.replace(kv_eviction=eviction)
    llm = make(kv_cache_dtype=kv_cache_dtype)
    expected = [facts(llm, prompt, params)[0] for prompt in PROMPTS]
    assert llm.stats()["kv_eviction"]["freed_bytes"] > 0
    settings: list[dict[str, Any]] = [
        {"max_num_batched_tokens": 24, "max_num_seqs": 4},
        {"num_kv_pages": 60, "max_num_batched_tokens": 32, "max_num_seqs": 4},
        {"speculative": {"method": "ngram", "num_speculative_tokens": 4, "prompt_lookup_min": 1}},
    ]
    for options in settings:
        llm = make(kv_cache_dtype=kv_cache_dtype, **options)
        assert facts(llm, PROMPTS, params) == expected
        assert llm.engine.cache.num_used_pages.full == 0
        assert llm.engine.cache.num_used_pages.quantized == 0


@pytest.mark.parametrize("eviction", EVICTIONS, ids=lambda e: e["method"])
def test_eight_bits_change_little(make: Callable[..., LLM], eviction: dict[str, Any]) -> None:
    """The same rows stay or nearly so: the first tokens after the eviction are as likely."""
    params = GREEDY.replace(kv_eviction=eviction, max_tokens=4)
    prompt = PROMPTS[0]
    ((_, plain, _),) = facts(make(kv_cache_dtype="auto"), prompt, params)
    ((_, coded, _),) = facts(make(), prompt, params)
    for a, b in zip(plain[:2], coded[:2], strict=True):
        common = set(a) & set(b)
        assert common
        assert all(abs(a[t].logprob - b[t].logprob) < 0.05 for t in common)


def test_both_pools_get_pages_back(make: Callable[..., LLM]) -> None:
    llm = make()
    engine = llm.engine
    params = GREEDY.replace(kv_eviction={"method": "knorm", "budget_tokens": 52})
    engine.add_request("a", PROMPTS[2], params)
    real, seen = engine.evictor.after_step, []

    def watch(*args: Any) -> None:
        before = engine.cache.num_used_pages
        real(*args)
        seen.append((before, engine.cache.num_used_pages))

    engine.evictor.after_step = watch  # type: ignore[method-assign]
    outputs: list[Any] = []
    while engine.has_unfinished:
        outputs += engine.step()
    ((before, after),) = [pair for pair in seen if pair[0] != pair[1]][:1]
    # 160 rows: 16 pages are read quantized, in 8 row groups, 4 in full, and one is held. Of 52 rows
    # 2 pages are read quantized, in one group, and 5 in full.
    assert (before.full, before.quantized) == (4 + 1, 8)
    assert (after.full, after.quantized) == (5, 1)
    old = engine.cache.quantized
    assert old is not None
    freed = 7 * old.layout.page_bytes - engine.cache.layout.page_bytes
    assert outputs[-1].metrics.kv_freed_bytes == freed > 0


@pytest.fixture(autouse=True)
def _one_thread() -> Any:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
