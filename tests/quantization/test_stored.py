"""The blocks of a GGUF file, multiplied as they are stored."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from gguf.constants import GGMLQuantizationType
from gguf.quants import dequantize, quantize

from infopt import LLM, SamplingParams
from infopt.errors import ConfigError, WeightFormatError
from infopt.ops.cpu import why_not
from infopt.ops.dispatch import OpTarget
from infopt.quantization import SCHEMES
from infopt.quantization.stored import _READERS

HAS_KERNELS = why_not(OpTarget(torch.device("cpu"), torch.float32)) is None
TYPES = ("Q4_1", "Q4_0", "Q8_0")


def blocks_of(kind: str, rows: int = 7, columns: int = 96) -> tuple[np.ndarray, np.ndarray]:
    """Return random blocks and the weights that they stand for."""
    weights = np.random.default_rng(0).normal(size=(rows, columns)).astype(np.float32)
    blocks = quantize(weights, GGMLQuantizationType[kind])
    return blocks, dequantize(blocks, GGMLQuantizationType[kind])


@pytest.mark.parametrize("kind", TYPES)
def test_codes_stand_for_exactly_the_stored_weights(kind):
    blocks, weights = blocks_of(kind)
    codes, scale, offset = _READERS[kind](blocks, weights.shape[1])
    assert codes.dtype == torch.uint8
    wide = [t.double().repeat_interleave(32, dim=1) for t in (scale, offset)]
    rebuilt = wide[0] * codes.double() + wide[1]
    assert np.abs(rebuilt.numpy() - weights).max() <= 1e-6 * np.abs(weights).max()


def test_both_schemes_are_registered():
    assert {"none", "q4_1", "q4_1-a8"} <= set(SCHEMES)


def test_a_checkpoint_without_such_blocks_is_refused(tiny_model_dir):
    with pytest.raises(WeightFormatError, match="runs the Q4_1 blocks of a GGUF file") as caught:
        LLM(str(tiny_model_dir("llama")), quantization="q4_1")
    assert caught.value.field == "quantization"
    assert "'none'" in str(caught.value)


def test_an_unknown_scheme_names_the_nearest():
    with pytest.raises(ConfigError, match="q4_1"):
        LLM("smollm2-135m-instruct-q4_1", quantization="q4_2")


@pytest.fixture(scope="module")
def loaded(smollm2_path: Path) -> dict[str, LLM]:
    """The real file: float weights, and both ways of running its blocks, in float32."""
    options = {"dtype": "float32", "max_model_len": 256, "kv_cache_memory_gib": 0.1}
    return {
        scheme: LLM(str(smollm2_path), quantization=scheme, **options)
        for scheme in ("none", "q4_1", "q4_1-a8")
    }


TEXT = (
    "A page table maps the positions of a sequence to pages of memory. When a sequence ends its "
    "pages return to the pool, and the next request may use them at once. The scheduler decides "
    "which requests share a step, how many tokens each may read, and who has to wait."
)


def divergence(loaded: dict[str, LLM], scheme: str) -> float:
    """Return the mean KL divergence from the float weights over a text, in nats."""
    ids = loaded["none"].tokenizer.encode(TEXT)
    reference, other = (loaded[s].logits(ids).log_softmax(-1) for s in ("none", scheme))
    return float((reference.exp() * (reference - other)).sum(-1).mean())


@pytest.mark.skipif(not HAS_KERNELS, reason="no C++ kernels here")
def test_sixteen_bit_activations_lose_nothing_and_eight_bits_little(loaded):
    assert abs(divergence(loaded, "q4_1")) < 1e-5
    assert 1e-5 < divergence(loaded, "q4_1-a8") < 0.05


@pytest.mark.skipif(not HAS_KERNELS, reason="no C++ kernels here")
def test_the_record_says_what_ran(loaded):
    facts = loaded["q4_1"].stats()
    assert facts["quantization"]["formats"] == {"q4_1": 120, "q8_0": 1}
    assert facts["quantization"]["backend"] == "cpu"
    assert facts["ops"]["layer_stack"]["backend"] == "cpu"
    plain = loaded["none"].stats()
    assert plain["quantization"]["formats"] == {"float32": 121}
    # 5 bits per weight of the layers, 8.5 of the head, against 32.
    assert 0.6 < facts["bytes_per_weight"] < 0.8
    assert plain["bytes_per_weight"] == 4


@pytest.mark.skipif(not HAS_KERNELS, reason="no C++ kernels here")
def test_greedy_text_does_not_depend_on_the_batch(loaded):
    """In float32 the products are exact sums of integers, so company changes nothing."""
    llm = loaded["q4_1"]
    prompts = [TEXT, "The capital of France is", "def fibonacci(n):"]
    params = SamplingParams(temperature=0, max_tokens=12)
    together = [o.outputs[0].token_ids for o in llm.generate(prompts, params, use_tqdm=False)]
    llm.reset_prefix_cache()
    alone = [llm.generate(p, params, use_tqdm=False)[0].outputs[0].token_ids for p in prompts]
    assert together == alone


def test_without_kernels_the_blocks_run_dequantized(smollm2_path, monkeypatch):
    """The slower path has the same weights, and the record says that it ran."""
    from infopt.ops import cpu

    monkeypatch.setattr(cpu, "why_not", lambda _: "no C++ compiler")
    options = {"dtype": "float32", "max_model_len": 64, "kv_cache_memory_gib": 0.1}
    with LLM(str(smollm2_path), quantization="q4_1", backend="reference", **options) as llm:
        report = llm.stats()["quantization"]
        assert report["backend"] == "reference"
        assert "no C++ compiler" in report["reason"]
        assert report["formats"] == {"float32": 121}
