"""Evicted requests beside drafters that run a model."""

from __future__ import annotations

from typing import Any

import pytest

from infopt import LLM, SamplingParams

EVICTION = {"method": "streaming", "budget_tokens": 32}
TEXT = list(range(5, 85))


def answers(requests: list[dict[str, Any]], **options: Any) -> list[list[int]]:
    with LLM(
        "tiny-dense",
        dtype="float32",
        preemption="swap",
        max_model_len=256,
        kv_cache_memory_gib=0.05,
        check_integrity=True,
        **options,
    ) as llm:
        params = [SamplingParams(temperature=0, max_tokens=40, **request) for request in requests]
        prompts = [TEXT[i:] for i in range(len(requests))]
        return [out.outputs[0].token_ids for out in llm.generate(prompts, params, use_tqdm=False)]


@pytest.mark.parametrize(
    "speculative",
    [
        {"method": "draft_model", "model": "tiny-draft", "num_speculative_tokens": 3},
        {"method": "early_exit", "skip_layers": [1], "num_speculative_tokens": 3},
    ],
    ids=lambda options: options["method"],
)
def test_an_evicted_request_gives_the_same_tokens_with_guesses(speculative: dict[str, Any]) -> None:
    requests = [{"kv_eviction": EVICTION}, {}, {"kv_eviction": EVICTION}]
    assert answers(requests, speculative=speculative) == answers(requests)
