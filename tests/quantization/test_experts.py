"""Quantized experts: rounded or calibrated, with what calibration saw of each."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from infopt import LLM, corpus
from infopt.errors import ConfigError
from infopt.models.checkpoint import open_checkpoint
from infopt.models.registry import resolve_model
from infopt.ops.cpu.quantized import CodeLinear
from infopt.ops.mlp import SparseMlp
from infopt.quantization import prepare, quantize_model
from infopt.quantization.calibration import CalibrationSet
from infopt.quantization.layerwise import LayerwiseQuantizer

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


WIDE = {
    "moe_intermediate_size": 32,
    "intermediate_size": 64,
    "shared_expert_intermediate_size": 64,
}
"""Widths that groups of 32 divide."""
CALIBRATED = {"int4-gptq-g32": 0.6, "int4-awq-g32": 0.9}
"""Scheme -> largest share of the divergence of plain rounding that it may have here."""


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A cache of quantized models of one's own."""
    folder = tmp_path_factory.mktemp("cache")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(prepare, "cache_dir", lambda: folder)
        yield folder


@pytest.mark.parametrize("scheme", CALIBRATED)
def test_calibrated_experts_are_nearer_than_rounded_ones(
    cache: Path, tokens: list[int], dense: torch.Tensor, scheme: str
) -> None:
    rounded = divergence(dense, run(tokens, quantization="int4-rtn-g32")[0])
    logprobs, stats, _ = run(tokens, quantization=scheme)
    kl = divergence(dense, logprobs)
    print(f"{scheme}: KL {kl:.5f}, rounded {rounded:.5f}")
    assert kl < CALIBRATED[scheme] * rounded
    experts = stats["quantization"]["details"]["experts"]
    assert experts["num_experts"] == 16
    assert experts["mean_tokens"] == 4096 * 2 / 8
    assert experts["num_uncovered"] == 0
    assert experts["fewest_tokens"] > 64


@pytest.mark.parametrize(("scheme", "bound"), [("w8a8-static", 0.01), ("mixed-5", 0.04)])
def test_other_calibrated_schemes_run_experts(
    cache: Path, tokens: list[int], dense: torch.Tensor, scheme: str, bound: float
) -> None:
    logprobs, stats, _ = run(tokens, quantization=scheme)
    assert 1e-7 < divergence(dense, logprobs) < bound
    assert stats["quantization"]["details"]["experts"]["num_uncovered"] == 0
    assert stats["quantization"]["path"] == "packed"


def test_experts_have_a_scheme_of_their_own(
    cache: Path, tokens: list[int], dense: torch.Tensor
) -> None:
    """Experts in 4 bits, calibrated, and all else in 8, rounded: one name."""
    logprobs, stats, _ = run(tokens, quantization="int8+experts-int4-gptq-g32")
    num_experts = NUM_EXPERT_PRODUCTS
    formats = {"int4-g32": num_experts, "int8": NUM_OTHER_PRODUCTS + 1}
    assert stats["quantization"]["formats"] == formats
    coarse = run(tokens, quantization="int8+experts-int4-rtn-g32")
    assert coarse[1]["quantization"]["formats"] == formats
    assert divergence(dense, logprobs) < divergence(dense, coarse[0])
    whole = run(tokens, quantization="int4-rtn-g32")[0]
    assert divergence(dense, coarse[0]) < divergence(dense, whole)


@pytest.mark.parametrize("scheme", ["int8+experts-int4-rtn-g32", "int8+experts-int4-gptq-g32"])
def test_a_dense_model_has_no_experts_to_code(scheme: str) -> None:
    with pytest.raises(ConfigError, match="for mixtures of experts, and this model is dense") as e:
        LLM("tiny-dense", quantization=scheme)
    assert "'int8'" in str(e.value.remedy)


@pytest.mark.parametrize("family", ["mixtral", "olmoe", "qwen2_moe", "qwen3_moe"])
@pytest.mark.parametrize("scheme", ["int4-gptq-g32", "int4-awq-g32", "w8a8-static-smooth"])
def test_experts_that_see_too_little_text_are_rounded_and_reported(
    tiny_model_dir: Callable[..., Path], tmp_path: Path, family: str, scheme: str
) -> None:
    """Pins: scales that are NaN, or those of an identity, for experts that calibration missed."""
    folder = tiny_model_dir(family, **WIDE)
    few = {"domain": "random", "num_sequences": 1, "length": 9}
    out = tmp_path / "q"
    report = quantize_model(str(folder), scheme, out, calibration=few, progress=False)
    expected = recount(folder, few)
    counted = {r.name: r.tokens for r in report.layers if r.tokens is not None}
    first = {name: count for name, count in counted.items() if name in expected}
    assert first == expected  # later layers see what the coded layers before them say
    assert report.experts is not None
    assert report.experts["num_uncovered"] == report.experts["num_experts"] > 0
    assert report.experts["fewest_tokens"] == 0
    word = "dynamic" if scheme.startswith("w8a8") else "rtn"
    for layer in report.layers:
        assert (layer.fell_back == word) == (layer.tokens is not None) or layer.tokens is None
        assert layer.exponent is None or math.isfinite(layer.exponent)
    with open_checkpoint(out) as checkpoint:
        for name in counted:
            coded = checkpoint.coded(name)
            assert coded.scale.isfinite().all()
            assert coded.activation.kind == ("dynamic" if word == "dynamic" else "float")
    with LLM(str(out), dtype="float32") as llm:
        assert llm.logits([5, 6, 7, 8]).isfinite().all()
        details = llm.stats()["quantization"]["details"]
    assert details["experts"]["num_uncovered"] == report.experts["num_uncovered"]


def recount(folder: Path, calibration: dict[str, Any]) -> dict[str, int]:
    """Count the tokens of each expert of the first sparse layer in the engine itself."""
    with open_checkpoint(folder) as checkpoint:
        chosen = CalibrationSet.from_dict(calibration)
        (ids,) = chosen.token_ids(checkpoint.config, None).tolist()
        first = checkpoint.config.moe.is_sparse.index(True)
    if first > 0:  # the layers before are coded
        return {}
    with LLM(str(folder), dtype="float32", expert_stats=True) as llm:
        llm.score([ids], use_tqdm=False)
        load = llm.stats()["experts"]["layers"][0]["load"]
    return {
        f"model.layers.0.mlp.experts.{expert}.{name}_proj": count
        for expert, count in enumerate(load)
        for name in ("gate", "up", "down")
    }


def test_covered_experts_have_steps_of_their_own(
    tiny_model_dir: Callable[..., Path], tmp_path: Path
) -> None:
    """One layer with both: experts above and below the least number of tokens."""
    text = {"domain": "random", "num_sequences": 2, "length": 100}
    report = quantize_model(
        str(tiny_model_dir("olmoe", **WIDE)),
        "w8a8-static",
        tmp_path / "q",
        calibration=text,
        progress=False,
    )
    kinds = {}
    with open_checkpoint(tmp_path / "q") as checkpoint:
        for layer in report.layers:
            if layer.tokens is not None:
                activation = checkpoint.coded(layer.name).activation
                kinds.setdefault(layer.tokens >= 64, set()).add(activation.kind)
                assert layer.fell_back == (None if layer.tokens >= 64 else "dynamic")
    assert kinds == {True: {"static"}, False: {"dynamic"}}


def test_interrupted_runs_keep_what_experts_saw(
    tiny_model_dir: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = str(tiny_model_dir("olmoe", **WIDE))

    def quantize(name: str) -> Any:
        text = {"domain": "random", "num_sequences": 1}
        return quantize_model(
            folder, "int4-gptq-g32", tmp_path / name, calibration=text, progress=False
        )

    whole = quantize("a")
    layer = LayerwiseQuantizer.layer

    def stop(self: LayerwiseQuantizer, index: int) -> Any:
        if index == 2:
            raise KeyboardInterrupt
        return layer(self, index)

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(LayerwiseQuantizer, "layer", stop)
        quantize("b")
    again = quantize("b")
    assert again.experts == whole.experts is not None
