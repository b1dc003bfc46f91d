"""Models quantized into folders: what they hold and cost, and that interruptions do no harm."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from infopt import LLM
from infopt.errors import CheckpointError, ConfigError, WeightFormatError
from infopt.models.checkpoint import open_checkpoint
from infopt.models.tensor_names import EMBEDDING, linear_layers
from infopt.quantization import quantize_model
from infopt.quantization.coded import CodedWeight
from infopt.quantization.coded_embedding import FILE_NAME, CodedEmbedding
from infopt.quantization.layer_inputs import INPUTS
from infopt.quantization.layerwise import LayerwiseQuantizer
from infopt.quantization.report import read_report

CALIBRATION = {"num_sequences": 4, "length": 64}
SCHEMES = (
    "int8",
    "int4-rtn-g32",
    "int4-rtn-g32-asym",
    "int4-awq-g32",
    "int4-gptq-g32",
    "int4-gptq-channel-inorder",
    "int3-rtn-g32",
    "int2-rtn-g32",
    "w8a8-dynamic",
    "w8a8-static",
    "w8a8-static-smooth",
    "fp8",
    "fp8-static",
    "mixed-5",
)


@pytest.fixture(scope="module")
def folder(tiny_model_dir: Callable[..., Path]) -> Path:
    return tiny_model_dir("llama", tie_word_embeddings=True, attention_bias=True)


def quantize(folder: Path, scheme: str, out: Path) -> Any:
    needs = scheme not in ("int8", "w8a8-dynamic", "fp8") and "rtn" not in scheme
    calibration = CALIBRATION if needs else None
    return quantize_model(str(folder), scheme, out, calibration=calibration, progress=False)


def first_logits(model: Path, **options: Any) -> torch.Tensor:
    with LLM(str(model), dtype="float32", **options) as llm:
        return llm.logits(list(range(40)))


@pytest.mark.parametrize("scheme", SCHEMES)
def test_a_quantized_folder_runs_as_what_it_is(folder: Path, tmp_path: Path, scheme: str) -> None:
    report = quantize(folder, scheme, tmp_path / "q")
    reference, found = first_logits(folder), first_logits(tmp_path / "q")
    error = float((found - reference).abs().max() / reference.abs().max())
    limits = {"int2": 1.6, "int3": 1.2, "int4": 0.6, "mixe": 0.6, "fp8": 0.3, "fp8-": 0.3}
    limits["w8a8"] = 0.25  # its text, and so its static steps, depend on the version of Python
    limit = limits.get(scheme[:4], 0.15)
    assert 0 < error < limit
    assert read_report(tmp_path / "q") == json.loads(json.dumps(report.to_dict()))
    with open_checkpoint(tmp_path / "q") as checkpoint:
        assert not checkpoint.config.tie_word_embeddings  # both are matrices of their own now
        coded = [checkpoint.coded(layer) for layer in linear_layers(checkpoint.config)]
    assert all(isinstance(c, CodedWeight) for c in coded)
    assert len(coded) == 3 * 7 + 1
    assert len(report.layers) == len(coded) + (scheme == "mixed-5")  # and the embedding


@pytest.mark.parametrize("family", ["llama", "gemma3_text"])
@pytest.mark.parametrize("tied", [True, False])
def test_mixed_bits_include_the_embedding(
    tiny_model_dir: Callable[..., Path], tmp_path: Path, family: str, tied: bool
) -> None:
    folder = tiny_model_dir(family, tie_word_embeddings=tied)
    report = quantize(folder, "mixed-5", tmp_path / "q")
    assert report.weight_bits <= 5
    assert [s.part for s in report.sensitivity].count("embedding") == 1
    with LLM(str(folder), dtype="float32") as whole, LLM(str(tmp_path / "q"), dtype="float32") as q:
        model = q.engine.runner.model
        assert isinstance(model.embedding, CodedEmbedding)
        ids = list(range(40))
        whole_bytes = whole.engine.describe()["weights_bytes"]
        assert q.engine.describe()["weights_bytes"] < 0.5 * whole_bytes  # type: ignore[operator]
        with open_checkpoint(tmp_path / "q") as checkpoint:
            table = checkpoint.get(EMBEDDING)
        assert torch.equal(model.embedding(torch.tensor(ids)), table[ids])
        assert q.logits(ids).isfinite().all()


def test_codes_of_another_embedding_are_refused(
    tiny_model_dir: Callable[..., Path], tmp_path: Path
) -> None:
    quantize(tiny_model_dir("llama"), "mixed-5", tmp_path / "q")
    quantize(tiny_model_dir("llama", seed=1), "mixed-5", tmp_path / "other")
    shutil.copy(tmp_path / "other" / FILE_NAME, tmp_path / "q" / FILE_NAME)
    with pytest.raises(CheckpointError, match=r"does not hold the codes of its embedding"):
        LLM(str(tmp_path / "q"))


@pytest.mark.parametrize("scheme", ["int4-rtn-g32", "int8", "w8a8-dynamic", "fp8"])
def test_rounding_at_load_gives_what_the_folder_holds(
    folder: Path, tmp_path: Path, scheme: str
) -> None:
    quantize(folder, scheme, tmp_path / "q")
    assert torch.equal(first_logits(folder, quantization=scheme), first_logits(tmp_path / "q"))


def test_calibrated_schemes_are_made_once_and_cached(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("INFOPT_CACHE_DIR", str(tmp_path))
    options = {"quantization": "int4-gptq-g32", "calibration": CALIBRATION}
    first = first_logits(folder, **options)
    (made,) = [p for p in (tmp_path / "quantized").iterdir() if p.is_dir()]
    stamp = (made / "config.json").stat().st_mtime_ns
    assert torch.equal(first_logits(folder, **options), first)
    assert (made / "config.json").stat().st_mtime_ns == stamp
    other = first_logits(folder, **{**options, "calibration": CALIBRATION | {"seed": 1}})
    assert not torch.equal(other, first)
    assert len([p for p in (tmp_path / "quantized").iterdir() if p.is_dir()]) == 2


def test_an_interrupted_run_goes_on_and_ends_with_the_same_bits(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    quantize(folder, "int4-gptq-g32", tmp_path / "whole")
    real, done = LayerwiseQuantizer.layer, []

    def layer(self: LayerwiseQuantizer, index: int) -> Any:
        if index == 2 and done == [0, 1]:
            raise KeyboardInterrupt
        done.append(index)
        return real(self, index)

    monkeypatch.setattr(LayerwiseQuantizer, "layer", layer)
    with pytest.raises(KeyboardInterrupt):
        quantize(folder, "int4-gptq-g32", tmp_path / "q")
    assert not (tmp_path / "q").exists()
    done.append(-1)
    report = quantize(folder, "int4-gptq-g32", tmp_path / "q")
    assert done == [0, 1, -1, 2]
    assert len(report.layers) == 3 * 7 + 1
    for file in sorted((tmp_path / "whole").glob("*.safetensors")):
        assert file.read_bytes() == (tmp_path / "q" / file.name).read_bytes()
    assert sorted(p.name for p in tmp_path.iterdir()) == ["q", "whole"]


def test_gptq_is_never_worse_than_rounding_on_any_layer(folder: Path, tmp_path: Path) -> None:
    gptq = quantize(folder, "int3-gptq-g32", tmp_path / "gptq")
    assert any(r.relative_error for r in gptq.layers)
    for report in gptq.layers[:-1]:
        assert report.fell_back in (None, "rtn")
    with open_checkpoint(folder) as checkpoint:
        ids = torch.arange(64).repeat(2, 1)
        from infopt.quantization.names import parse

        found = {}
        for name in ("int3-gptq-g32", "int3-rtn-g32"):
            recipe = parse(name)
            assert recipe is not None
            layer = LayerwiseQuantizer(checkpoint, recipe, ids).layer(0)
            found[name] = [r.relative_error for r in layer.reports]
    for repaired, rounded in zip(found["int3-gptq-g32"], found["int3-rtn-g32"], strict=True):
        assert repaired <= rounded


def test_awq_errors_are_not_above_plain_rounding(folder: Path) -> None:
    from infopt.quantization.names import parse

    ids = torch.arange(64).repeat(2, 1)
    with open_checkpoint(folder) as checkpoint:
        found = {}
        for name in ("int3-awq-g32", "int3-rtn-g32"):
            recipe = parse(name)
            assert recipe is not None
            layer = LayerwiseQuantizer(checkpoint, recipe, ids).layer(0)
            found[name] = {r.name: r for r in layer.reports}
    # Scales are chosen for all readers of an input together; the output projection of shared
    # values cannot be scaled.
    awq = found["int3-awq-g32"]
    assert awq["model.layers.0.self_attn.o_proj"].exponent is None
    assert all(awq[f"model.layers.0.{n}"].exponent is not None for n in INPUTS["gate_up"])
    down = "model.layers.0.mlp.down_proj"
    assert awq[down].relative_error <= found["int3-rtn-g32"][down].relative_error


def test_bits_and_bytes_are_those_of_the_formula(folder: Path, tmp_path: Path) -> None:
    report = quantize(folder, "int4-rtn-g32", tmp_path / "q")
    by_name = {r.name: r for r in report.layers}
    assert by_name["model.layers.0.mlp.up_proj"].bits == 4 + 16 / 32
    assert by_name["lm_head"].bits == 8 + 16 / 64
    assert report.formats == {"int4-g32": 21, "int8": 1}
    total = sum(r.bits * r.num_weights for r in report.layers)
    assert report.weight_bits == pytest.approx(total / sum(r.num_weights for r in report.layers))


@pytest.mark.parametrize("scheme", ["q4_1", "none", "nf4", "llm.int8"])
def test_schemes_without_a_form_on_disk_are_refused(
    folder: Path, tmp_path: Path, scheme: str
) -> None:
    with pytest.raises(WeightFormatError, match="has no form in the compressed-tensors format"):
        quantize_model(str(folder), scheme, tmp_path / "q")


def test_a_quantized_model_is_not_quantized_again(folder: Path, tmp_path: Path) -> None:
    quantize(folder, "int8", tmp_path / "q")
    with pytest.raises(WeightFormatError, match="quantized already"):
        quantize_model(str(tmp_path / "q"), "int4-rtn-g32", tmp_path / "again")
    with pytest.raises(ConfigError, match=r"quantized already \(int8\)"):
        LLM(str(tmp_path / "q"), quantization="int4-rtn-g32")


def test_calibration_that_nothing_needs_is_refused(folder: Path) -> None:
    with pytest.raises(ConfigError, match="needs no calibration"):
        LLM(str(folder), quantization="int8", calibration={"seed": 1})


def test_groups_that_do_not_divide_a_layer_name_it(folder: Path) -> None:
    with pytest.raises(ConfigError, match=r"q_proj has 64 inputs.*128.*32, 64"):
        LLM(str(folder), quantization="int4-rtn-g128")


def test_weights_on_the_grid_already_are_flagged(folder: Path, tmp_path: Path) -> None:
    """Rounding what was rounded before loses nothing, which proves nothing: the report says so."""
    from safetensors.torch import load_file, save_file

    tensors = load_file(folder / "model.safetensors")
    for name, tensor in tensors.items():
        if "proj.weight" in name:
            codes = torch.randint(0, 16, tensor.shape, generator=torch.Generator().manual_seed(0))
            codes.view(len(codes), -1, 32)[:, :, :2] = torch.tensor([0, 15])
            tensors[name] = (codes - 7) * 2.0**-6
    for file in folder.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    save_file(tensors, tmp_path / "model.safetensors", metadata={"format": "pt"})
    for name, scheme, expected in (("grid", tmp_path, True), ("float", folder, False)):
        with LLM(str(scheme), quantization="int4-rtn-g32-asym", dtype="float32") as llm:
            assert llm.stats()["quantization"]["on_stored_grid"] is expected, name
