"""Quantized experts: rounding schemes run them, schemes that observe inputs refuse by name."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from infopt import LLM, corpus
from infopt.errors import WeightFormatError
from infopt.models.checkpoint import open_checkpoint
from infopt.models.registry import resolve_model
from infopt.ops.cpu.quantized import CodeLinear
from infopt.ops.mlp import SparseMlp
from infopt.quantization import quantize_model
from infopt.quantization.layerwise import read_block

NUM_EXPERT_PRODUCTS = 2 * 2 * 8  # sparse layers, products, experts
NUM_OTHER_PRODUCTS = 4 * 2 + 2 * 2 + 2 * 2  # attention, dense MLPs, shared experts


@pytest.fixture(scope="module")
def tokens() -> list[int]:
    with open_checkpoint(resolve_model("tiny-moe", show_progress=False)) as checkpoint:
        return checkpoint.tokenizer().encode(corpus.text("docs", "heldout")[:1500])[:300]


def run(tokens: list[int], **options: Any) -> tuple[torch.Tensor, dict[str, Any], list[Any]]:
    """Return log-probabilities, stats and the sparse layers of tiny-moe."""
    with LLM("tiny-moe", dtype="float32", **options) as llm:
        mlps = [layer.mlp for layer in llm.engine.runner.model.layers]
        return llm.logits(tokens).log_softmax(-1), llm.stats(), mlps


@pytest.fixture(scope="module")
def dense(tokens: list[int]) -> torch.Tensor:
    return run(tokens)[0]


def divergence(dense: torch.Tensor, other: torch.Tensor) -> float:
    return float((dense.exp() * (dense - other)).sum(-1).mean())


@pytest.mark.parametrize(
    ("scheme", "bound"), [("int8", 0.002), ("int4-rtn-g32", 0.05), ("w8a8-dynamic", 0.003)]
)
def test_rounded_experts_stay_near_the_float_model(
    tokens: list[int], dense: torch.Tensor, scheme: str, bound: float
) -> None:
    """Not the float model either: a scheme that is not applied would have no divergence."""
    logprobs, stats, mlps = run(tokens, quantization=scheme)
    kl = divergence(dense, logprobs)
    print(f"{scheme}: KL {kl:.5f}")
    assert 1e-7 < kl < bound
    num_coded = NUM_EXPERT_PRODUCTS + NUM_OTHER_PRODUCTS
    assert sum(stats["quantization"]["formats"].values()) == num_coded + 1  # and the head
    sparse = [mlp for mlp in mlps if isinstance(mlp, SparseMlp)]
    assert len(sparse) == 2
    for mlp in sparse:
        assert mlp.experts.choice.backend == "cpu"
        assert {type(linear).__name__ for linear in mlp.spec.down} != {"PackedLinear"}


def test_the_router_stays_dense(tokens: list[int]) -> None:
    _, _, mlps = run(tokens, quantization="int4-rtn-g32")
    for mlp in (mlp for mlp in mlps if isinstance(mlp, SparseMlp)):
        assert not isinstance(mlp.router, CodeLinear)
        assert all(isinstance(linear, CodeLinear) for linear in mlp.spec.gate_up)


def test_bits_of_coded_experts_do_not_depend_on_chunks(tokens: list[int]) -> None:
    whole = run(tokens, quantization="int4-rtn-g32")[0]
    parts = run(tokens, quantization="int4-rtn-g32", max_num_batched_tokens=32)[0]
    assert torch.equal(whole, parts)


def test_packed_experts_are_smaller(tokens: list[int]) -> None:
    sizes = [
        run(tokens[:4], quantization=scheme)[1]["memory"]["weights_bytes"]
        for scheme in ("none", "int8", "int4-rtn-g32")
    ]
    assert sizes[0] > 2.5 * sizes[1] > 2.5 * 1.1 * sizes[2]


@pytest.mark.parametrize("scheme", ["int4-awq-g32", "int4-gptq-g32", "mixed-5"])
def test_schemes_that_observe_inputs_are_refused_by_name(scheme: str) -> None:
    with pytest.raises(WeightFormatError, match=r"8 experts in 2 of its layers \(MoE\)") as caught:
        LLM("tiny-moe", dtype="float32", quantization=scheme)
    assert "int4-rtn-g64" in str(caught.value.remedy)


def test_folders_of_quantized_experts_are_refused(
    tiny_model_dir: Callable[..., Path], tmp_path: Path
) -> None:
    out = tmp_path / "q"
    with pytest.raises(WeightFormatError, match="MoE"):
        quantize_model(str(tiny_model_dir("mixtral")), "int8", out, progress=False)
    assert not out.exists()


def test_no_block_is_made_of_a_layer_with_experts(tiny_model_dir: Callable[..., Path]) -> None:
    with (
        open_checkpoint(tiny_model_dir("olmoe")) as checkpoint,
        pytest.raises(WeightFormatError, match="8 experts in 3"),
    ):
        read_block(checkpoint, 0)
