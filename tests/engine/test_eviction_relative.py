"""Streaming with positions that count within the cache, and outputs longer than the model's limit.

With one layer keys depend on their token and its position alone, so a streamed output is what the
model makes of the kept tokens as a short text of their own.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
import torch

from infopt import LLM, SamplingParams
from infopt.errors import ConfigError, InfoptError, PromptTooLongError, SamplingParamsError

SINKS, BUDGET, INTERVAL = 3, 20, 8
STREAMING: dict[str, Any] = {
    "method": "streaming",
    "positions": "relative",
    "sinks": SINKS,
    "budget_tokens": BUDGET,
    "interval_pages": 2,
}
GREEDY = SamplingParams(temperature=0, max_tokens=60, ignore_eos=True, kv_eviction=STREAMING)


def ids(count: int, seed: int = 0) -> list[int]:
    return random.Random(seed).choices(range(4, 320), k=count)


def seen(num_prompt: int, num_tokens: int) -> list[list[int]]:
    """Return the positions that each output token is chosen from."""
    rows, found = list(range(num_prompt)), []
    found.append(list(rows))
    rows = rows[:SINKS] + rows[SINKS - BUDGET :] if num_prompt > BUDGET else rows
    for position in range(num_prompt, num_prompt + num_tokens - 1):
        rows.append(position)
        found.append(list(rows))
        if len(rows) >= BUDGET + INTERVAL:
            rows = rows[:SINKS] + rows[SINKS - BUDGET :]
    return found


@pytest.fixture
def make(make_llm: Callable[..., LLM]) -> Callable[..., LLM]:
    """Factory of engines that may swap, on one layer."""

    def build(layers: int = 1, **options: Any) -> LLM:
        model = {"num_hidden_layers": layers}
        return make_llm(model=model, **({"preemption": "swap"} | options))

    return build


@pytest.mark.parametrize("backend", ["reference", "cpu"])
@pytest.mark.parametrize("num_prompt", [50, 12])
def test_an_output_is_that_of_the_kept_tokens_alone(
    make: Callable[..., LLM], num_prompt: int, backend: str
) -> None:
    llm, prompt = make(backend=backend), ids(num_prompt)
    rows: list[torch.Tensor] = []
    llm.engine.logit_observer = lambda _, row: rows.append(row.float().clone())
    (output,) = llm.generate(prompt, GREEDY, use_tqdm=False)
    llm.engine.logit_observer = None
    text = [*prompt, *output.outputs[0].token_ids]
    assert len(rows) == GREEDY.max_tokens
    for row, positions in zip(rows, seen(num_prompt, len(rows)), strict=True):
        expected = llm.logits([text[at] for at in positions])[-1]
        assert (row - expected).abs().max() <= 1e-4 * expected.abs().max()
    assert llm.stats()["kv_eviction"]["evictions"] >= 4


def test_true_positions_give_something_else(make: Callable[..., LLM]) -> None:
    """Else the test above could not tell them apart."""
    llm, prompt = make(), ids(50)
    texts = []
    for positions in ("true", "relative"):
        params = GREEDY.replace(kv_eviction=STREAMING | {"positions": positions}, logprobs=1)
        texts.append(llm.generate(prompt, params, use_tqdm=False)[0].outputs[0].logprobs)
    assert texts[0][0] == texts[1][0] and texts[0][5:] != texts[1][5:]


def test_a_budget_that_holds_everything_changes_no_bit(make: Callable[..., LLM]) -> None:
    llm, params = make(3), GREEDY.replace(max_tokens=20, logprobs=2)
    found = [
        llm.generate(ids(40), params.replace(kv_eviction=eviction), use_tqdm=False)[0].outputs[0]
        for eviction in (None, STREAMING | {"budget_tokens": 64})
    ]
    assert found[0].logprobs == found[1].logprobs


@pytest.mark.parametrize("kv_cache_dtype", ["auto", "int8"])
def test_an_output_goes_on_beyond_the_model(make: Callable[..., LLM], kv_cache_dtype: str) -> None:
    """The pool holds less than half of the output, and the rotary table ends at 64."""
    options: dict[str, Any] = {"max_model_len": 64, "kv_cache_dtype": kv_cache_dtype}
    options |= {"kv_group_size": 16, "kv_residual": 20}
    llm = make(3, num_kv_pages=32, **options)
    params = GREEDY.replace(max_tokens=300)
    (output,) = llm.generate(ids(40), params, use_tqdm=False)
    assert len(output.outputs[0].token_ids) == 300
    assert llm.engine.cache.num_used_pages.full == 0
    with pytest.raises(PromptTooLongError, match="max_model_len"):
        true = params.replace(kv_eviction=STREAMING | {"positions": "true"})
        llm.generate(ids(40), true, use_tqdm=False)


@pytest.mark.parametrize("kv_cache_dtype", ["auto", "int8", "fp8_e4m3"])
def test_bits_depend_on_the_request_alone(make: Callable[..., LLM], kv_cache_dtype: str) -> None:
    options: dict[str, Any] = {"kv_cache_dtype": kv_cache_dtype, "block_size": 8}
    options |= {"kv_group_size": 16, "kv_residual": 32}
    prompts = [ids(count, count) for count in (50, 70, 12, 33)]
    params = GREEDY.replace(logprobs=1, kv_eviction=STREAMING | {"budget_tokens": 44})

    def facts(llm: LLM, asked: list[list[int]]) -> list[Any]:
        outputs = llm.generate(asked, params, use_tqdm=False)
        return [(o.outputs[0].token_ids, o.outputs[0].logprobs) for o in outputs]

    alone = make(3, enable_prefix_caching=False, **options)
    expected = [facts(alone, [prompt])[0] for prompt in prompts]
    guesses = {"method": "ngram", "num_speculative_tokens": 4, "prompt_lookup_min": 1}
    for more in (
        {"max_num_batched_tokens": 16, "max_num_seqs": 4},
        {"speculative": guesses},
        {"num_kv_pages": 30, "max_num_batched_tokens": 32, "max_num_seqs": 4},
    ):
        llm = make(3, **options, **more)
        assert facts(llm, prompts) == expected
        llm.engine.check_integrity()


@pytest.mark.parametrize(
    ("options", "request_options", "num_prompt", "words"),
    [
        ({}, {"positions": "cache"}, 40, "must be 'true' or 'relative'"),
        ({}, {"decode": False}, 40, "needs decode: true"),
        ({"max_model_len": 64}, {"budget_tokens": 60}, 40, "take up to 68 rows"),
        ({"max_model_len": 64}, {}, 65, "take up to 65 rows"),
        ({"num_kv_pages": 8}, {}, 33, "the KV pool holds 32"),
        ({"family": "gemma3_text"}, {}, 40, "sliding windows keep theirs"),
    ],
)
def test_what_cannot_be_streamed_is_refused(
    make_llm: Callable[..., LLM],
    options: dict[str, Any],
    request_options: dict[str, Any],
    num_prompt: int,
    words: str,
) -> None:
    llm = make_llm(preemption="swap", **options)
    params = GREEDY.replace(kv_eviction=STREAMING | request_options)
    with pytest.raises(InfoptError) as caught:
        llm.generate(ids(num_prompt), params, use_tqdm=False)
    assert words in str(caught.value)
    assert not llm.engine.has_unfinished


def test_a_drafter_with_a_model_counts_the_whole_text() -> None:
    guesses = {"method": "draft_model", "model": "tiny-draft", "num_speculative_tokens": 2}
    with (
        LLM("tiny-dense", max_model_len=96, preemption="swap", speculative=guesses) as llm,
        pytest.raises(PromptTooLongError, match="together more than"),
    ):
        llm.generate(ids(40), GREEDY, use_tqdm=False)


def test_an_engine_can_stream_by_default(make: Callable[..., LLM]) -> None:
    llm = make(kv_eviction=STREAMING, max_model_len=64)
    params = SamplingParams(temperature=0, max_tokens=100, ignore_eos=True)
    (output,) = llm.generate(ids(20), params, use_tqdm=False)
    assert len(output.outputs[0].token_ids) == 100
    with pytest.raises(ConfigError, match="decode"):
        make(kv_eviction=STREAMING | {"decode": False})
    with pytest.raises(SamplingParamsError, match="positions"):
        llm.generate(ids(20), GREEDY.replace(kv_eviction=STREAMING | {"positions": 1}))
