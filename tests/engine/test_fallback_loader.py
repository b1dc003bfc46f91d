"""Engines around transformers' modules: what they honour, what they refuse, what they report."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from infopt import LLM, SamplingParams
from infopt.errors import (
    ConfigError,
    DependencyError,
    InfoptError,
    SamplingParamsError,
    UnsupportedModelError,
)
from infopt.evals.families.cases import CASES
from infopt.evals.families.write import write_checkpoint

OPTIONS: dict[str, Any] = {
    "dtype": "float32",
    "skip_tokenizer_init": True,
    "check_integrity": True,
    "kv_cache_memory_gib": 0.01,
}
PROMPTS = [[5, 9, 200, 31] * 5, [7, 7, 8], list(range(4, 40))]


def sampled(llm: LLM, max_tokens: int = 20, prompts: list[list[int]] = PROMPTS) -> list[list[int]]:
    params = [
        SamplingParams(seed=i, max_tokens=max_tokens, ignore_eos=True) for i in range(len(prompts))
    ]
    outputs = llm.generate(list(prompts), params, use_tqdm=False)
    return [list(output.outputs[0].token_ids) for output in outputs]


def test_description(family_dir: Callable[[str], Path]) -> None:
    with LLM(str(family_dir("deepseek_v3")), **OPTIONS) as llm:
        facts = llm.engine.describe()
        assert facts["model_path"] == "transformers"
        assert "deepseek_v3" in str(facts["model_path_reason"])
        assert facts["kv_layers"] == "2 x [latent 1x32 + rotary key 1x16]"
        assert facts["kv_bytes_per_token"] == facts["kv_stored_bytes_per_token"] == 2 * 48 * 4
        assert facts["batch_invariant"] is False
        assert facts["cuda_graphs"]["state"] == "off"  # type: ignore[index]
        assert facts["kv_pool_bytes"] == llm.engine.runner.store.buffer.nbytes
        stats = llm.stats()
        assert stats["model_path"] == "transformers"


def test_native_models_say_so(tiny_model_dir: Callable[..., Path]) -> None:
    with LLM(str(tiny_model_dir("llama")), dtype="float32", kv_cache_memory_gib=0.01) as llm:
        assert llm.engine.describe()["model_path"] == "native"


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("quantization", "int8"),
        ("calibration", {"domain": "docs"}),
        ("backend", "cpu"),
    ],
)
def test_options_of_native_models_are_refused(
    family_dir: Callable[[str], Path], name: str, value: Any
) -> None:
    with pytest.raises(ConfigError, match=name) as caught:
        LLM(str(family_dir("gpt_oss")), **(OPTIONS | {name: value}))
    assert caught.value.field == name


@pytest.mark.parametrize(
    ("name", "value"),
    [("preemption", "swap"), ("speculative", {"method": "ngram", "num_speculative_tokens": 3})],
)
def test_states_cannot_be_swapped_or_rolled_back(
    family_dir: Callable[[str], Path], name: str, value: Any
) -> None:
    with pytest.raises(ConfigError, match=name):
        LLM(str(family_dir("lfm2")), **(OPTIONS | {name: value}))


def test_eviction_by_request_is_refused(family_dir: Callable[[str], Path]) -> None:
    eviction = {"method": "streaming", "budget": 0.5}
    with LLM(str(family_dir("gpt_oss")), **(OPTIONS | {"preemption": "swap"})) as llm:
        params = SamplingParams(max_tokens=4, kv_eviction=eviction)
        with pytest.raises(SamplingParamsError, match="through transformers"):
            llm.generate([PROMPTS[0]], params, use_tqdm=False)
    with pytest.raises(ConfigError, match="kv_eviction"):
        options = OPTIONS | {"preemption": "swap", "kv_eviction": eviction}
        LLM(str(family_dir("gpt_oss")), **options)


@pytest.mark.parametrize("method", ["draft_model", "early_exit"])
def test_drafters_that_compute_with_the_target_are_refused(
    family_dir: Callable[[str], Path], method: str
) -> None:
    speculative = {"method": method, "num_speculative_tokens": 2}
    if method == "draft_model":
        speculative["model"] = "tiny-draft"
    with pytest.raises(ConfigError, match="natively"):
        LLM(str(family_dir("gpt_oss")), **(OPTIONS | {"speculative": speculative}))


def test_an_old_transformers_is_named(
    family_dir: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "infopt.engine.fallback_loader", None)
    with pytest.raises(DependencyError, match="newer"):
        LLM(str(family_dir("gpt_oss")), **OPTIONS)


def test_longer_than_the_model_is_refused(family_dir: Callable[[str], Path]) -> None:
    with pytest.raises(ConfigError, match="512"):
        LLM(str(family_dir("gpt_oss")), max_model_len=513, **OPTIONS)


@pytest.mark.parametrize(
    "options",
    [
        {"max_num_seqs": 1},
        {"max_num_batched_tokens": 8, "max_num_seqs": 4},
        {"scheduling": "static", "max_num_seqs": 2},
        {"scheduling": "static_padded", "max_num_seqs": 2},
        {"enable_prefix_caching": False},
        {"block_size": 5},
        {"speculative": {"method": "ngram", "num_speculative_tokens": 3}},
    ],
    ids=str,
)
@pytest.mark.parametrize("family", ["glm_moe_dsa", "gpt_oss"])
def test_samples_do_not_depend_on_how_they_are_computed(
    family_dir: Callable[[str], Path], family: str, options: dict[str, Any]
) -> None:
    """Rounding differs, so bits do; these samples are far from any tie."""
    with LLM(str(family_dir(family)), **OPTIONS) as llm:
        expected = sampled(llm)
    with LLM(str(family_dir(family)), **(OPTIONS | options)) as llm:
        assert sampled(llm) == expected


@pytest.mark.parametrize("preemption", ["recompute", "swap"])
@pytest.mark.parametrize("family", ["glm_moe_dsa", "gpt_oss"])
def test_preempted_sequences_continue(
    family_dir: Callable[[str], Path], family: str, preemption: str
) -> None:
    prompts = [list(range(4 + i, 18)) for i in range(4)]  # one page each, three in the end
    with LLM(str(family_dir(family)), **OPTIONS) as llm:
        expected = sampled(llm, 24, prompts)
        pages = 6 * int(llm.engine.describe()["num_kv_groups"])  # type: ignore[call-overload]
    options = OPTIONS | {"num_kv_pages": pages, "preemption": preemption}
    with LLM(str(family_dir(family)), **options) as llm:
        assert sampled(llm, 24, prompts) == expected
        assert llm.engine.stats.num_preemptions


@pytest.mark.parametrize("family", ["deepseek_v4", "falcon"])
def test_states_end_with_their_sequences(family_dir: Callable[[str], Path], family: str) -> None:
    with LLM(str(family_dir(family)), **OPTIONS) as llm:
        states: dict[int, Any] = llm.engine.runner.store.states
        sampled(llm)
        assert not states
        llm.engine.add_request("a", PROMPTS[0], SamplingParams(max_tokens=30, ignore_eos=True))
        llm.engine.step()
        assert len(states) == 1
        llm.engine.abort("a")
        assert not states
        llm.logits(PROMPTS[1])
        assert not states


def test_padding_makes_no_states(family_dir: Callable[[str], Path]) -> None:
    with LLM(str(family_dir("falcon")), **OPTIONS) as llm:
        expected = sampled(llm)
    options = OPTIONS | {"scheduling": "static_padded", "max_num_seqs": 3}
    with LLM(str(family_dir("falcon")), **options) as llm:
        assert sampled(llm) == expected
        assert not llm.engine.runner.store.states


def test_unpaged_models_say_so(
    family_dir: Callable[[str], Path], caplog: pytest.LogCaptureFixture
) -> None:
    with LLM(str(family_dir("deepseek_v4")), **OPTIONS) as llm:
        facts = llm.engine.describe()
        assert facts["kv_is_paged"] is False
        assert "DeepseekV4HCACache" in str(facts["kv_layers"])
        assert caplog.text.count("unpaged") == 1
        repeated = llm.generate([PROMPTS[2]] * 2, SamplingParams(max_tokens=2), use_tqdm=False)
        assert [output.num_cached_tokens for output in repeated] == [0, 0]


def test_window_pages_return_early(family_dir: Callable[[str], Path]) -> None:
    """Half of the layers keep 24 tokens: 100 tokens need 7 pages there, but hold 3 at most."""
    with LLM(str(family_dir("gpt_oss")), enable_prefix_caching=False, **OPTIONS) as llm:
        params = SamplingParams(max_tokens=100, ignore_eos=True)
        llm.engine.add_request("a", PROMPTS[1], params)
        most = 0
        while llm.engine.has_unfinished:
            llm.engine.step()
            most = max(most, llm.engine.cache.pool.num_used)
        assert most <= 7 + 3


def test_timing_single_ops_is_refused(family_dir: Callable[[str], Path]) -> None:
    with LLM(str(family_dir("gpt_oss")), **OPTIONS) as llm:
        runner = llm.engine.runner
        with pytest.raises(UnsupportedModelError), runner.using_ops(runner.model.ops):
            pass
        assert sampled(llm, 3)


def test_families_that_nobody_runs_are_refused(tmp_path: Path) -> None:
    write_checkpoint(next(case for case in CASES if case.family == "gpt_oss"), tmp_path)
    config = tmp_path / "config.json"
    config.write_text(config.read_text("utf-8").replace('"gpt_oss"', '"no_such"'))
    with pytest.raises(InfoptError, match="no_such"):
        LLM(str(tmp_path), **OPTIONS)


def test_text_chat_and_forms(
    family_dir: Callable[[str], Path],
    make_tiny_tokenizer: Callable[..., Any],
    tmp_path: Path,
) -> None:
    """Everything above the runner is the same: tokenizer, templates, grammars, scores."""
    folder = shutil.copytree(family_dir("deepseek_v3"), tmp_path / "with-tokenizer")
    make_tiny_tokenizer().save_pretrained(folder)
    options = OPTIONS | {"skip_tokenizer_init": False}
    with LLM(str(folder), **options) as llm:
        params = SamplingParams(temperature=0, max_tokens=6, ignore_eos=True)
        output = llm.generate(["A page table"], params, use_tqdm=False)[0]
        assert len(output.outputs[0].token_ids) == 6 and output.outputs[0].text
        answer = llm.chat([{"role": "user", "content": "hi"}], params, use_tqdm=False)[0]
        assert len(answer.outputs[0].token_ids) == 6
        form = SamplingParams(temperature=0, max_tokens=8, structured_outputs={"regex": "[0-9]{3}"})
        assert llm.generate(["n ="], form, use_tqdm=False)[0].outputs[0].text.isdigit()
        scores = llm.score(["A page table maps positions"], use_tqdm=False)[0].logprobs
        assert scores[0] is None and all(score is not None for score in scores[1:])


@pytest.mark.parametrize("family", ["gpt_oss", "glm_moe_dsa", "deepseek_v4"])
def test_bfloat16(family_dir: Callable[[str], Path], family: str) -> None:
    with LLM(str(family_dir(family)), **OPTIONS) as llm:
        exact = llm.logits(PROMPTS[2])
    with LLM(str(family_dir(family)), **(OPTIONS | {"dtype": "bfloat16"})) as llm:
        facts = llm.engine.describe()
        assert facts["batch_invariant"] is None
        rounded = llm.logits(PROMPTS[2])
        assert sampled(llm, 5)
    errors = (rounded - exact).abs().amax(-1) / exact.abs().amax(-1)
    assert 1e-5 < float(errors.median()) < 0.05
