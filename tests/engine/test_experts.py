"""Mixtures of experts in the engine: who is routed, bits in company, prefixes, counted weights."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from infopt import LLM, SamplingParams
from infopt.ops.mlp import SparseMlp

FAMILIES = ["mixtral", "qwen2_moe", "qwen3_moe", "olmoe"]
GREEDY = SamplingParams(temperature=0, max_tokens=6, ignore_eos=True, logprobs=0)
PROMPTS = [[5, 6, 7], list(range(10, 50)), [9] * 17, list(range(60, 68))]


class Recorder:
    """Stands for a layer's experts and counts the choices that reach them."""

    def __init__(self, experts: Any) -> None:
        self.experts, self.choice = experts, experts.choice
        self.num_choices = self.num_rows = 0

    def __call__(self, x: torch.Tensor, ids: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
        self.num_choices += int((ids >= 0).sum())
        self.num_rows += len(ids)
        return self.experts(x, ids, weights)


def sparse_mlps(llm: LLM) -> list[SparseMlp]:
    layers = llm.engine.runner.model.layers
    return [layer.mlp for layer in layers if isinstance(layer.mlp, SparseMlp)]


def record(llm: LLM) -> list[Recorder]:
    """Put a recorder in front of each sparse layer's experts."""
    recorders = []
    for mlp in sparse_mlps(llm):
        recorders.append(Recorder(mlp.experts))
        object.__setattr__(mlp, "experts", recorders[-1])
    return recorders


@pytest.mark.parametrize("scheduling", ["continuous", "static_padded"])
def test_padding_is_never_routed(tiny_model_dir: Callable[..., Path], scheduling: str) -> None:
    """Prompts of 3 to 40 tokens side by side, padded to the longest where the batch is padded."""
    options: dict[str, Any] = {"scheduling": scheduling, "max_num_seqs": 4}
    folder = str(tiny_model_dir("qwen3_moe"))
    # Only layers that run op by op can be listened to.
    with LLM(folder, dtype="float32", backend="reference", **options) as llm:
        recorders, llm.engine.step_log = record(llm), []
        assert len(recorders) == 2
        llm.generate(PROMPTS, GREEDY, use_tqdm=False)
        steps = llm.engine.step_log
        real = sum(step.num_prefill_tokens + step.num_decode_tokens for step in steps)
        padding = sum(step.num_padding_tokens for step in steps)
    assert (padding > 0) == (scheduling == "static_padded")
    for recorder in recorders:
        assert recorder.num_rows == real + padding
        assert recorder.num_choices == 4 * real  # top 4


@pytest.mark.parametrize("family", FAMILIES)
def test_logits_are_the_same_alone_in_chunks_and_after_a_prefix(
    tiny_model_dir: Callable[..., Path], family: str
) -> None:
    folder = str(tiny_model_dir(family))
    ids = list(range(4, 100))
    with LLM(folder, dtype="float32", enable_prefix_caching=False) as llm:
        alone = llm.logits(ids)
    with LLM(folder, dtype="float32", max_num_batched_tokens=32, block_size=8) as llm:
        assert torch.equal(llm.logits(ids), alone)
        params = GREEDY.replace(max_tokens=1)
        llm.generate([ids], params, use_tqdm=False)
        seen: list[torch.Tensor] = []
        original = llm.engine.runner.logit_blocks
        llm.engine.runner.logit_blocks = lambda h: keep(original(h), seen)  # type: ignore[method-assign]
        outputs = llm.generate([ids, *PROMPTS], params, use_tqdm=False)
    assert outputs[0].num_cached_tokens == 88
    rows = torch.cat(seen)
    assert any(torch.equal(row, alone[-1]) for row in rows)


def keep(blocks: Any, into: list[torch.Tensor]) -> Any:
    for block in blocks:
        into.append(block.clone())
        yield block


@pytest.mark.parametrize("family", FAMILIES)
def test_decoding_in_a_batch_agrees_with_transformers(
    tiny_model_dir: Callable[..., Path], family: str
) -> None:
    """Log-probabilities of what was generated, teacher-forced in transformers."""
    from transformers import AutoModelForCausalLM

    folder = tiny_model_dir(family)
    model = AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.float32, attn_implementation="eager"
    ).eval()
    prompts = [*PROMPTS, [*PROMPTS[1][:33], 7, 8, 9]]  # the last begins like another one
    with LLM(str(folder), dtype="float32", max_num_batched_tokens=32) as llm:
        outputs = llm.generate(prompts[:4], GREEDY, use_tqdm=False)
        outputs += llm.generate(prompts[4:], GREEDY, use_tqdm=False)
    assert outputs[-1].num_cached_tokens == 32
    for prompt, output in zip(prompts, outputs, strict=True):
        tokens = output.outputs[0].token_ids
        with torch.inference_mode():
            logits = model(torch.tensor([prompt + tokens])).logits[0, len(prompt) - 1 : -1]
        wanted = logits.log_softmax(-1)[torch.arange(len(tokens)), tokens]
        found = [entry[token].logprob for entry, token in rows_of(output)]
        assert found == pytest.approx(wanted.tolist(), abs=2e-4)


def rows_of(output: Any) -> Any:
    completion = output.outputs[0]
    return zip(completion.logprobs, completion.token_ids, strict=True)


@pytest.mark.parametrize("family", FAMILIES)
def test_weights_are_counted_once(tiny_model_dir: Callable[..., Path], family: str) -> None:
    with LLM(str(tiny_model_dir(family)), dtype="float32", backend="reference") as llm:
        config = llm.model_config
        norms = (2 * 3 + 1) * 64
        norms += 3 * (config.query_norm_size + config.key_norm_size) if config.qk_norm else 0
        assert llm.stats()["memory"]["weights_bytes"] == 4 * (config.num_parameters - norms)
        assert llm.stats()["batch_invariant"] is True


def test_records_say_what_runs_the_experts(tiny_model_dir: Callable[..., Path]) -> None:
    with LLM(str(tiny_model_dir("mixtral")), dtype="float32") as llm:
        ops = llm.stats()["ops"]
    assert ops["experts"]["backend"] == "cpu"
    assert ops["layer_stack"]["backend"] == ops["route"]["backend"] == "cpu"
