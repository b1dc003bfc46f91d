"""Quantized pages in float32: a request's bits depend on that request alone, for every format.

The form in which a query reads a row depends on rows alone, so logits are equal to the bit in any
chunks, company, order, pool and with any guesses. Small row groups and residuals, so that short
sequences have many quantized pages.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from infopt import LLM, SamplingParams
from infopt.corpus import docs_text
from infopt.errors import CapacityError, ConfigError

DTYPES = ["int8", "int4", "int2", "fp8_e4m3", "fp8_e5m2"]
SMALL: dict[str, Any] = {"kv_group_size": 16, "kv_residual": 32, "block_size": 8}
"""Pages of 8: a page of keys is half a row group, and half a block of the kernels."""

FAMILIES: dict[str, dict[str, Any]] = {
    "llama": {},
    "gemma3_text": {"sliding_window": 48},  # above residual and page: window groups quantize, too
}
LENGTHS = [1, 5, 31, 32, 33, 64, 65, 100, 129, 180, 190]
NUM_NEW_TOKENS = 20

SETTINGS: dict[str, dict[str, Any]] = {
    "batched": {},
    "chunk-16": {"max_num_batched_tokens": 16, "max_num_seqs": 8},
    "chunk-64": {"max_num_batched_tokens": 64},
    "no-prefix-cache": {"enable_prefix_caching": False},
    "preempt-recompute": {"num_kv_pages": 48, "max_num_batched_tokens": 64},
    "preempt-swap": {
        "num_kv_pages": 48,
        "max_num_batched_tokens": 64,
        "preemption": "swap",
    },
    "static-padded": {"scheduling": "static_padded", "max_num_seqs": 5},
    "ngram-1": {"speculative": {"method": "ngram", "num_speculative_tokens": 1}},
    "ngram-8": {"speculative": {"method": "ngram", "num_speculative_tokens": 8}},
}


def prompts_of() -> list[list[int]]:
    """Random prompts that repeat themselves, so that n-grams guess; every third shares a prefix."""
    generator = torch.Generator().manual_seed(5)
    prompts: list[list[int]] = []
    for i, length in enumerate(LENGTHS):
        ids = torch.randint(4, 40, (length,), generator=generator).tolist()
        if i % 3 == 2 or i == len(LENGTHS) - 1:
            ids[: len(prompts[-1])] = prompts[-1][: length - 2]
        prompts.append(ids)
    return prompts


class Run:
    """One engine's greedy outputs, and the logits of each (request, position)."""

    def __init__(
        self,
        folder: Path | str,
        *,
        one_by_one: bool = False,
        prompts: list[list[int]] | None = None,
        **options: Any,
    ) -> None:
        self.tokens: dict[str, list[int]] = {}
        self.logits: dict[tuple[str, int], torch.Tensor] = {}
        options = {"dtype": "float32", "check_integrity": True, **SMALL, **options}
        with LLM(str(folder), **options) as llm:
            self._record(llm)
            params = SamplingParams(temperature=0, max_tokens=NUM_NEW_TOKENS, ignore_eos=True)
            for i, prompt in enumerate(prompts or prompts_of()):
                llm.engine.add_request(str(i), prompt, params)
                if one_by_one:
                    self._drain(llm)
            self._drain(llm)
            self.stats = llm.stats()

    def _drain(self, llm: LLM) -> None:
        while llm.engine.has_unfinished:
            for output in llm.engine.step():
                self.tokens[output.request_id] = output.outputs[0].token_ids

    def _record(self, llm: LLM) -> None:
        """Keep what each token was chosen from: rows of wrong guesses are nobody's."""

        def keep(sequence: Any, row: torch.Tensor) -> None:
            self.logits[sequence.request_id, len(sequence.token_ids)] = row.clone()

        llm.engine.logit_observer = keep


@pytest.fixture(scope="module")
def solo(tiny_model_dir: Callable[..., Path]) -> Callable[..., tuple[Path, Run]]:
    """Factory of the runs that all others must equal: one request after the other."""
    runs: dict[tuple[str, str, str], tuple[Path, Run]] = {}

    def make(family: str, dtype: str, backend: str) -> tuple[Path, Run]:
        key = (family, dtype, backend)
        if key not in runs:
            folder = tiny_model_dir(family, **FAMILIES[family])
            options = {"kv_cache_dtype": dtype, "backend": backend, "enable_prefix_caching": False}
            runs[key] = (folder, Run(folder, one_by_one=True, **options))
        return runs[key]

    return make


@pytest.mark.parametrize("backend", ["reference", "cpu"])
@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("setting", SETTINGS)
def test_logits_are_bit_identical(
    solo: Callable[..., tuple[Path, Run]], family: str, setting: str, backend: str
) -> None:
    options = dict(SETTINGS[setting])
    if family == "gemma3_text" and "num_kv_pages" in options:
        options["num_kv_pages"] = 84  # three KV groups instead of one
    folder, expected = solo(family, "int8", backend)
    _check_equal(expected, Run(folder, kv_cache_dtype="int8", backend=backend, **options), setting)


@pytest.mark.parametrize("backend", ["reference", "cpu"])
@pytest.mark.parametrize("dtype", DTYPES[1:])
@pytest.mark.parametrize("setting", ["chunk-16", "ngram-8"])
def test_every_format_is_bit_identical(
    solo: Callable[..., tuple[Path, Run]], dtype: str, setting: str, backend: str
) -> None:
    options = dict(SETTINGS[setting])
    folder, expected = solo("llama", dtype, backend)
    _check_equal(expected, Run(folder, kv_cache_dtype=dtype, backend=backend, **options), setting)


@pytest.mark.parametrize("num_drafts", range(1, 9))
@pytest.mark.parametrize("dtype", ["int8", "int4", "fp8_e4m3"])
def test_every_draft_length_is_bit_identical(
    solo: Callable[..., tuple[Path, Run]], dtype: str, num_drafts: int
) -> None:
    """Guesses cross page borders and row groups at every offset; rejected ones are never coded."""
    folder, expected = solo("llama", dtype, "cpu")
    guesses = {"method": "ngram", "num_speculative_tokens": num_drafts, "prompt_lookup_min": 1}
    got = Run(folder, kv_cache_dtype=dtype, backend="cpu", speculative=guesses)
    _check_equal(expected, got, f"ngram-{num_drafts}")


def test_a_trained_model_is_bit_identical_with_default_sizes() -> None:
    """Chunks beyond the residual, a shared prefix, guesses: row groups of 64, residual 128."""
    text = docs_text()
    with LLM("tiny-dense", dtype="float32") as llm:
        assert llm.tokenizer is not None
        ids = llm.tokenizer.encode(text[:6000])
    prompts = [ids[:400], ids[:390], ids[100:229], ids[500:628], ids[600:901]]
    common: dict[str, Any] = {"kv_group_size": 64, "kv_residual": 128, "block_size": 16}
    common |= {"kv_cache_dtype": "int8", "prompts": prompts, "max_model_len": 512}
    alone = Run("tiny-dense", one_by_one=True, enable_prefix_caching=False, **common)
    guesses = {"method": "ngram", "num_speculative_tokens": 6}
    for options in (
        {"max_num_batched_tokens": 16, "max_num_seqs": 4},
        {"max_num_batched_tokens": 2048},
        {"speculative": guesses, "max_num_batched_tokens": 100},
    ):
        _check_equal(alone, Run("tiny-dense", **common, **options), "trained")


def _check_equal(expected: Run, got: Run, setting: str) -> None:
    assert got.tokens == expected.tokens
    assert got.logits.keys() == expected.logits.keys()
    different = [k for k, row in expected.logits.items() if not torch.equal(got.logits[k], row)]
    assert not different, f"{len(different)} of {len(expected.logits)} rows differ: {different[:3]}"
    assert got.stats["pages"]["used"] == got.stats["pages"]["quantized"]["used"] == 0
    assert (got.stats["preemptions"] > 0) == setting.startswith("preempt")
    if setting in ("batched", "chunk-16", "chunk-64"):
        assert got.stats["cached_tokens"] > 0
    if setting.startswith("ngram"):
        assert got.stats["speculative"]["accepted_tokens"] > 0


def test_a_residual_longer_than_the_text_changes_no_bit(
    tiny_model_dir: Callable[..., Path],
) -> None:
    """Pins: prompts within the residual were quantized whole."""
    folder = tiny_model_dir("llama")
    for backend in ("reference", "cpu"):
        plain = Run(folder, backend=backend, kv_cache_dtype="auto")
        long = Run(folder, backend=backend, kv_cache_dtype="int2", kv_residual=256)
        assert long.tokens == plain.tokens
        assert all(torch.equal(long.logits[key], row) for key, row in plain.logits.items())
        short = Run(folder, backend=backend, kv_cache_dtype="int2")
        within = [key for key in plain.logits if key[1] <= SMALL["kv_residual"]]
        assert within and all(torch.equal(short.logits[k], plain.logits[k]) for k in within)
        assert any(not torch.equal(short.logits[k], row) for k, row in plain.logits.items())


@pytest.mark.parametrize("chunk", [16, 512])
def test_scores_and_logits_do_not_depend_on_chunks(
    tiny_model_dir: Callable[..., Path], chunk: int
) -> None:
    folder, text = tiny_model_dir("llama"), prompts_of()[-1]
    options = {"dtype": "float32", "kv_cache_dtype": "int4", **SMALL}
    scores, logits = [], []
    for tokens in (chunk, 64):
        with LLM(str(folder), max_num_batched_tokens=tokens, max_num_seqs=4, **options) as llm:
            scores.append(llm.score([text])[0].logprobs)
            logits.append(llm.logits(text))
            assert llm.stats()["pages"]["quantized"]["used"] == 0
    assert scores[0] == scores[1] and scores[0][0] is None
    assert torch.equal(*logits)


def test_a_repeated_prompt_finds_both_forms(tiny_model_dir: Callable[..., Path]) -> None:
    """All full pages but those of the last token, although old ones exist quantized alone."""
    prompt = prompts_of()[-1]
    params = SamplingParams(temperature=0, max_tokens=4, ignore_eos=True)
    with LLM(str(tiny_model_dir("llama")), dtype="float32", kv_cache_dtype="int8", **SMALL) as llm:
        first, second = (llm.generate([prompt], params, use_tqdm=False)[0] for _ in range(2))
        assert first.num_cached_tokens == 0
        assert second.num_cached_tokens == (len(prompt) - 1) // 8 * 8
        assert first.outputs[0].token_ids == second.outputs[0].token_ids
        llm.reset_prefix_cache()
        third = llm.generate([prompt], params, use_tqdm=False)[0]
        assert third.num_cached_tokens == 0
        quantized = llm.stats()["pages"]["quantized"]
        assert quantized["cached"] > 0 and quantized["used"] == 0


def test_an_abort_gives_pages_of_both_forms_back(tiny_model_dir: Callable[..., Path]) -> None:
    with LLM(str(tiny_model_dir("llama")), dtype="float32", kv_cache_dtype="int8", **SMALL) as llm:
        for i, prompt in enumerate(prompts_of()):
            llm.engine.add_request(str(i), prompt, SamplingParams(max_tokens=50, ignore_eos=True))
        for _ in range(10):
            llm.engine.step()
        assert llm.stats()["pages"]["quantized"]["used"] > 0
        llm.engine.abort_all()
        llm.engine.scheduler.check_integrity()
        assert llm.stats()["pages"]["used"] == llm.stats()["pages"]["quantized"]["used"] == 0


def test_the_description_says_what_is_kept_how(tiny_model_dir: Callable[..., Path]) -> None:
    """3 layers, 2 key heads of 16: keys and values of a token are 768 bytes in float32."""
    folder, options = str(tiny_model_dir("llama")), {"dtype": "float32", "max_model_len": 256}
    with LLM(folder, kv_cache_dtype="int4", num_kv_pages=200, **options, **SMALL) as llm:
        facts = llm.engine.describe()
        cache, pool = facts["kv_cache"], llm.engine.cache
        # Codes 2 x 16 x 16 / 2, steps 4 x (16 + 16): 384 bytes of 16 rows, 6 heads.
        assert cache["bytes_per_new_token"] == 768
        assert cache["bytes_per_old_token"] == facts["kv_bytes_per_token"] == 384 * 6 / 16
        assert cache["quantized_page_bytes"] == 384 * 6
        assert facts["kv_pool_bytes"] <= 202 * facts["page_bytes"] + 384 * 6
        assert pool.quantized.pool.num_pages == cache["num_quantized_pages"]
    with LLM(folder, num_kv_pages=200, block_size=8, **options) as llm:
        assert llm.engine.describe()["kv_cache"] == {"dtype": "auto"}
        assert llm.stats()["pages"]["quantized"] is None


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        ({"kv_residual": 16}, ConfigError, "kv_residual=16"),
        ({"kv_group_size": 40}, ConfigError, "kv_group_size=40"),
        ({"kv_cache_dtype": "int3"}, ConfigError, "kv_cache_dtype='int3'"),
        ({"kv_group_size": 0}, ConfigError, "kv_group_size"),
        ({"num_kv_pages": 0}, ConfigError, "num_kv_pages"),
        ({"kv_cache_memory_gib": 1e-9}, CapacityError, "one token needs"),
        (
            {"speculative": {"method": "ngram", "num_speculative_tokens": 16}},
            ConfigError,
            "16 drafted tokens",
        ),
    ],
)
def test_impossible_settings_are_refused(
    tiny_model_dir: Callable[..., Path],
    options: dict[str, Any],
    error: type[Exception],
    words: str,
) -> None:
    given = {"dtype": "float32", "kv_cache_dtype": "int8", **SMALL, **options}
    with pytest.raises(error, match=words):
        LLM(str(tiny_model_dir("llama")), **given)


def test_heads_that_do_not_fit_are_refused(tiny_model_dir: Callable[..., Path]) -> None:
    folder = tiny_model_dir("llama", head_dim=24)
    with pytest.raises(ConfigError, match="head_dim is 24"):
        LLM(str(folder), dtype="float32", kv_cache_dtype="int4", **SMALL)
