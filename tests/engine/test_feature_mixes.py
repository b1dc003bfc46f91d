"""Engines drawn at random: any form of pages, guesses, eviction, chunks, prefix cache, preemption.

Each of them gives every request what a plain engine gives it alone, to the bit of its
log-probabilities, and after each step pages, queues and host memory add up.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch

from infopt import LLM, SamplingParams
from infopt.cache.quantized_pages import PageNeed

NUM_MIXES = 40
NUM_REQUESTS = 6
COMMON: dict[str, Any] = {
    "block_size": 8,
    "kv_group_size": 16,
    "kv_residual": 32,
    "max_model_len": 160,
    "backend": "cpu",
}
FAMILIES: dict[str, dict[str, Any]] = {
    "llama": {"model": {}, "num_groups": 1},
    "gemma3_text": {"model": {"sliding_window": 48}, "num_groups": 3},  # two of them with windows
}
DTYPES = ["auto", "int8", "int4", "int2", "fp8_e4m3", "fp8_e5m2"]
EVICTIONS: list[dict[str, Any] | None] = [
    None,
    None,
    {"method": "streaming", "budget_tokens": 47, "interval_pages": 1},
    {"method": "tova", "budget_tokens": 41, "interval_pages": 1, "protected": 3},
    {"method": "h2o", "budget_tokens": 45, "interval_pages": 2},
    {"method": "snapkv", "budget": 0.5, "window": 6, "kernel": 3},
    {"method": "expected_attention", "budget": 0.4, "window": 16, "future": 8},
    {"method": "knorm", "budget_tokens": 30},
]


@dataclass(frozen=True)
class Mix:
    """An engine, and what it is asked."""

    family: str
    kv_cache_dtype: str
    options: dict[str, Any]
    requests: list[tuple[list[int], SamplingParams]]
    aborts: set[int]


def draw_mix(seed: int) -> Mix:
    rng = random.Random(seed)
    family = rng.choice([*FAMILIES])
    num_drafts = rng.randint(0, 8)
    preemption = rng.choice(["swap", "swap", "recompute"])
    guesses = {"num_speculative_tokens": num_drafts, "prompt_lookup_min": 1}
    options: dict[str, Any] = {
        "max_num_batched_tokens": rng.choice([8, 16, 33, 64, 512]),
        "max_num_seqs": rng.randint(2, 6),
        "enable_prefix_caching": rng.random() < 0.7,
        "preemption": preemption,
        "scheduling": rng.choice(["continuous", "continuous", "static"]),
        "speculative": {"method": rng.choice(["ngram", "suffix"]), **guesses},
        "num_kv_pages": rng.choice([26, 32, 200]) * FAMILIES[family]["num_groups"],
    }
    if not num_drafts:
        del options["speculative"]
    elif options["speculative"]["method"] == "suffix":
        options["speculative"] = {"method": "suffix", "num_speculative_tokens": num_drafts}
    options["max_num_seqs"] = min(options["max_num_seqs"], options["max_num_batched_tokens"])
    return Mix(
        family,
        rng.choice(DTYPES),
        options,
        [_request(rng, preemption == "swap") for _ in range(NUM_REQUESTS)],
        {rng.randrange(NUM_REQUESTS)} if rng.random() < 0.5 else set(),
    )


def _request(rng: random.Random, may_evict: bool) -> tuple[list[int], SamplingParams]:
    """Return a prompt of parts that repeat, and that others have too."""
    parts = [[10 + (i * j) % 7 for j in range(24)] for i in range(1, 4)]
    prompt = [token for _ in range(rng.randint(0, 4)) for token in parts[rng.randrange(2)]]
    prompt += [rng.randint(4, 39) for _ in range(rng.randint(1, 20))]
    params = SamplingParams(
        temperature=rng.choice([0.0, 0.8]),
        seed=rng.randint(0, 9),
        max_tokens=rng.randint(1, 30),
        ignore_eos=True,
        logprobs=1,
        n=rng.randint(1, 2),
        kv_eviction=rng.choice(EVICTIONS) if may_evict else None,
    )
    return prompt, params


def _facts(output: Any) -> list[tuple[list[int], list[Any]]]:
    return [(c.token_ids, c.logprobs) for c in output.outputs]


@pytest.fixture
def alone(make_llm: Callable[..., LLM]) -> Callable[[Mix], list[Any]]:
    """What each request of a mix gives in a plain engine with room for it."""

    def run(mix: Mix) -> list[Any]:
        llm = make_llm(
            mix.family,
            FAMILIES[mix.family]["model"],
            kv_cache_dtype=mix.kv_cache_dtype,
            num_kv_pages=600,
            preemption=mix.options["preemption"],
            enable_prefix_caching=False,
            **COMMON,
        )
        return [_facts(llm.generate(*request, use_tqdm=False)[0]) for request in mix.requests]

    return run


@pytest.mark.parametrize("seed", range(NUM_MIXES))
def test_any_mix_gives_each_request_what_it_gets_alone(
    make_llm: Callable[..., LLM], alone: Callable[[Mix], list[Any]], seed: int
) -> None:
    torch.set_num_threads(1)
    mix = draw_mix(seed)
    llm = make_llm(
        mix.family,
        FAMILIES[mix.family]["model"],
        kv_cache_dtype=mix.kv_cache_dtype,
        **COMMON,
        **mix.options,
    )
    engine, done = llm.engine, {}
    for name, request in enumerate(mix.requests):
        engine.add_request(str(name), *request)
        done |= _step(engine)
    for name in mix.aborts:
        engine.abort(str(name))
    for _ in range(2000):
        if not engine.has_unfinished:
            break
        done |= _step(engine)
    assert set(done) == set(map(str, range(NUM_REQUESTS))), "a request starves"
    assert engine.cache.num_used_pages == PageNeed()
    for name, expected in enumerate(alone(mix)):
        for found, whole in zip(_facts(done[str(name)]), expected, strict=True):
            count = len(found[0])
            assert (count == len(whole[0])) or name in mix.aborts
            assert found == (whole[0][:count], whole[1][:count]), mix


def _step(engine: Any) -> dict[str, Any]:
    """Run a step; the engine checks its integrity after it."""
    assert engine.config.check_integrity
    return {output.request_id: output for output in engine.step()}


def test_mixes_cover_everything() -> None:
    """Each feature occurs, and those that meet at page borders occur together."""
    mixes = [draw_mix(seed) for seed in range(NUM_MIXES)]
    assert {m.kv_cache_dtype for m in mixes} == set(DTYPES)
    assert {m.family for m in mixes} == set(FAMILIES)
    methods = {(p.kv_eviction or {}).get("method") for m in mixes for _, p in m.requests}
    assert methods == {(e or {}).get("method") for e in EVICTIONS}
    lengths = {m.options.get("speculative", {}).get("num_speculative_tokens") for m in mixes}
    assert lengths == {None, *range(1, 9)}
    for dtype in DTYPES[1:]:
        own = [m for m in mixes if m.kv_cache_dtype == dtype]
        assert any("speculative" in m.options and m.options["preemption"] == "swap" for m in own)
