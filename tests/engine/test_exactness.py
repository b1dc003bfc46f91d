"""Batch invariance in float32: a request's bits depend on that request alone.

24 mixed requests run alone, together, in chunks of 16 / 64 / 2048 tokens, with and without prefix
cache, in a pool so small that they are preempted (recompute and swap), continuous and static. On a
small random model the logits of every generated token are equal to the bit; on the real model the
greedy tokens are.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from infopt import LLM, SamplingParams

NUM_NEW_TOKENS = 12

FAMILIES = ["llama", "gemma3_text", "qwen2_moe"]
"""One pool of full layers, windows, and experts (one of them shared)."""

SETTINGS: dict[str, dict[str, Any]] = {
    "batched": {},
    "chunk-16": {"max_num_batched_tokens": 16, "max_num_seqs": 16},
    "chunk-64": {"max_num_batched_tokens": 64},
    "chunk-2048": {"max_num_batched_tokens": 2048},
    "no-prefix-cache": {"enable_prefix_caching": False},
    "preempt-recompute": {"num_kv_pages": 56},
    "preempt-swap": {"num_kv_pages": 56, "preemption": "swap"},
    "static": {"scheduling": "static", "max_num_seqs": 5},
    "static-padded": {"scheduling": "static_padded", "max_num_seqs": 5},
    "page-4": {"block_size": 4},
    "one-thread": {"num_threads": 1},
}

LENGTHS = [1, 2, 3, 7, 8, 15, 16, 17, 31, 32, 33, 48, 63, 64, 65, 100, 128, 200, 255, 256, 257]
LENGTHS += [300, 500, 700]


@pytest.fixture(autouse=True)
def _keep_num_threads() -> Any:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def mixed_prompts(vocab_size: int, lengths: list[int]) -> list[list[int]]:
    """Return random prompts; every third begins like the one before it, to meet the cache."""
    generator = torch.Generator().manual_seed(11)
    prompts: list[list[int]] = []
    for i, length in enumerate(lengths):
        ids = torch.randint(4, vocab_size, (length,), generator=generator).tolist()
        if i % 3 == 2:
            shared = prompts[-1][: length // 2]
            ids[: len(shared)] = shared
        prompts.append(ids)
    return prompts


def run(
    folder: Path, prompts: list[list[int]], *, one_by_one: bool = False, **options: Any
) -> tuple[dict[int, list[int]], dict[tuple[int, int], torch.Tensor], dict[str, Any]]:
    """Generate greedily; return tokens, the logits of each (request, position), and stats."""
    logits_of: dict[tuple[int, int], torch.Tensor] = {}
    with LLM(str(folder), dtype="float32", check_integrity=True, **options) as llm:
        record_logits(llm, logits_of)
        params = SamplingParams(temperature=0, max_tokens=NUM_NEW_TOKENS, ignore_eos=True)
        tokens: dict[int, list[int]] = {}
        for i, prompt in enumerate(prompts):
            llm.engine.add_request(str(i), prompt, params)
            if one_by_one:
                drain(llm, tokens)
        drain(llm, tokens)
        return tokens, logits_of, llm.stats()


def drain(llm: LLM, tokens: dict[int, list[int]]) -> None:
    while llm.engine.has_unfinished:
        for output in llm.engine.step():
            tokens[int(output.request_id)] = output.outputs[0].token_ids


def record_logits(llm: LLM, into: dict[tuple[int, int], torch.Tensor]) -> None:
    """Keep the raw logits that each token was chosen from."""

    def keep(sequence: Any, row: torch.Tensor) -> None:
        into[int(sequence.request_id), len(sequence.token_ids)] = row.clone()

    llm.engine.logit_observer = keep


@pytest.fixture(scope="module")
def tiny(tiny_model_dir: Callable[..., Path]) -> dict[str, Any]:
    """The small models, their prompts and the solo runs."""
    cases = {}
    for family in FAMILIES:
        folder = tiny_model_dir(family, max_position_embeddings=1024)
        prompts = mixed_prompts(320, LENGTHS)
        solo = run(folder, prompts, one_by_one=True, enable_prefix_caching=False)
        cases[family] = (folder, prompts, solo)
    return cases


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("setting", SETTINGS)
def test_logits_are_bit_identical(tiny: dict[str, Any], family: str, setting: str) -> None:
    folder, prompts, (tokens, logits, _) = tiny[family]
    options = dict(SETTINGS[setting])
    if family == "gemma3_text" and "num_kv_pages" in options:
        options["num_kv_pages"] = 130  # three KV groups instead of one
    got_tokens, got_logits, stats = run(folder, prompts, **options)
    assert got_tokens == tokens
    assert got_logits.keys() == logits.keys()
    different = [key for key in logits if not torch.equal(got_logits[key], logits[key])]
    assert not different, f"{len(different)} of {len(logits)} rows differ, first {different[:3]}"
    assert stats["pages"]["used"] == 0
    assert (stats["preemptions"] > 0) == setting.startswith("preempt")
    assert (stats["cached_tokens"] > 0) == (setting != "no-prefix-cache")


def test_seeded_samples_do_not_depend_on_neighbours(tiny: dict[str, Any]) -> None:
    """On some servers a seeded request changed as soon as an unseeded one shared its batch."""
    folder, prompts, _ = tiny["llama"]
    params = SamplingParams(temperature=0.9, top_p=0.95, seed=7, max_tokens=24, ignore_eos=True)
    other = SamplingParams(temperature=1.3, max_tokens=24, ignore_eos=True)
    with LLM(str(folder), dtype="float32") as llm:
        alone = llm.generate(prompts[10], params, use_tqdm=False)[0].outputs[0].token_ids
        for _ in range(5):
            crowd = llm.generate(
                [prompts[3], prompts[10], prompts[12], prompts[20]],
                [other, params, other, other],
                use_tqdm=False,
            )
            assert crowd[1].outputs[0].token_ids == alone


@pytest.mark.parametrize("quantization", ["none", "int4-rtn-g32", "w8a8-dynamic"])
def test_one_text_alone_at_once_and_one_after_another(
    tiny_model_dir: Callable[..., Path], quantization: str
) -> None:
    """Pins: greedy answers differed at once, and again for requests that came later."""
    prompt = mixed_prompts(320, [37])[0]
    params = SamplingParams(temperature=0, max_tokens=128, ignore_eos=True)
    options = {"dtype": "float32", "quantization": quantization, "enable_prefix_caching": False}
    with LLM(str(tiny_model_dir("llama")), max_num_batched_tokens=48, **options) as llm:
        tokens: dict[int, list[int]] = {}
        llm.engine.add_request("0", prompt, params)
        drain(llm, tokens)
        for i in range(1, 5):
            llm.engine.add_request(str(i), prompt, params)
        drain(llm, tokens)
        for i in range(5, 9):
            llm.engine.add_request(str(i), prompt, params)
            for _ in range(3):
                for output in llm.engine.step():
                    tokens[int(output.request_id)] = output.outputs[0].token_ids
        drain(llm, tokens)
    assert len(tokens) == 9
    assert len(set(tokens[0])) > 10
    assert all(answer == tokens[0] for answer in tokens.values())


@pytest.mark.slow
def test_real_model_gives_identical_tokens(smollm2_path: Path) -> None:
    """The same on the real model: greedy tokens of 24 requests in every setting."""
    prompts = mixed_prompts(49000, LENGTHS)
    common = {"max_model_len": 1024, "kv_cache_memory_gib": 0.5}
    expected, logits, _ = run(
        smollm2_path, prompts, one_by_one=True, **common | {"enable_prefix_caching": False}
    )
    for setting, options in SETTINGS.items():
        tokens, got, stats = run(smollm2_path, prompts, **{**common, **options})
        assert tokens == expected, setting
        assert all(torch.equal(got[key], logits[key]) for key in logits), setting
        if setting.startswith("preempt"):
            assert stats["preemptions"] > 0
