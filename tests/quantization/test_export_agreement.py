"""Folders with coded weights mean the same to transformers: weights to the bit, logits closely."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from infopt import LLM
from infopt.models.checkpoint import open_checkpoint
from infopt.quantization import quantize_model
from infopt.quantization.coded import ActivationFormat, CodedWeight, WeightFormat

MAX_RELATIVE_ERROR = 1e-4
FLOAT8 = WeightFormat(8, number="float")
INT8 = WeightFormat(8)
STATIC = ActivationFormat("static", scale=0.0625)
STATIC_FLOAT8 = ActivationFormat("static", number="float", scale=0.0625)

WEIGHT_ONLY = [
    *(WeightFormat(bits, group) for bits in (2, 3, 4, 8) for group in (None, 32)),
    FLOAT8,
]


def blocks(fmt: WeightFormat) -> Callable[[str], WeightFormat | None]:
    return lambda layer: None if layer == "lm_head" else fmt


def load(folder: Path, ids: list[int], **options: Any) -> tuple[Any, torch.Tensor]:
    """Return transformers' model, its weights decompressed, and its logits of a sequence."""
    from transformers import AutoModelForCausalLM

    model, found = AutoModelForCausalLM.from_pretrained(
        folder,
        dtype=torch.float32,
        attn_implementation="eager",
        output_loading_info=True,
        **options,
    )
    for kind in ("missing_keys", "unexpected_keys", "mismatched_keys"):
        assert not found[kind], kind
    with torch.inference_mode():
        return model, model.eval()(torch.tensor([ids])).logits[0]


def check_weights(folder: Path, model: Any) -> int:
    """Compare every weight, and return how many are coded."""
    parameters = dict(model.named_parameters())
    num_coded = 0
    with open_checkpoint(folder) as checkpoint:
        gemma = checkpoint.config.family == "gemma3_text"
        for name in checkpoint.names():
            folded = gemma and name.endswith("norm.weight")
            theirs = parameters[name] + 1 if folded else parameters[name]
            assert torch.equal(checkpoint.get(name), theirs), name
            num_coded += checkpoint.coded(name.removesuffix(".weight")) is not None
    return num_coded


def random_ids(length: int, seed: int = 0) -> list[int]:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(4, 300, (length,), generator=generator).tolist()


def check_logits(folder: Path, ids: list[int], theirs: torch.Tensor) -> float:
    """Return the largest of `row_errors`."""
    return float(row_errors(folder, ids, theirs).max())


def row_errors(folder: Path, ids: list[int], theirs: torch.Tensor) -> torch.Tensor:
    """Return the largest difference of each row over its largest logit.

    The reference multiplies with dequantized weights in float32, as transformers does.
    """
    llm = LLM(str(folder), backend="reference", dtype="float32", max_model_len=64)
    ours = llm.logits(ids)
    return (ours - theirs).abs().amax(-1) / theirs.abs().amax(-1)


@pytest.mark.parametrize("fmt", WEIGHT_ONLY, ids=WeightFormat.describe)
def test_weight_formats(tiny_model_dir, write_coded, tmp_path, fmt):
    folder = write_coded(tmp_path / "out", open_checkpoint(tiny_model_dir("llama")), blocks(fmt))
    ids = random_ids(40)
    model, theirs = load(folder, ids)
    assert check_weights(folder, model) == 21
    assert check_logits(folder, ids, theirs) <= MAX_RELATIVE_ERROR


@pytest.mark.parametrize("family", ["llama", "mistral", "qwen2", "qwen3", "gemma3_text"])
@pytest.mark.parametrize("tied", [False, True])
def test_families_with_a_coded_head(tiny_model_dir, write_coded, tmp_path, family, tied):
    source = open_checkpoint(tiny_model_dir(family, tie_word_embeddings=tied))
    folder = write_coded(
        tmp_path / "out",
        source,
        lambda layer: INT8 if layer == "lm_head" else WeightFormat(4, 32),
    )
    ids = random_ids(40)
    model, theirs = load(folder, ids)
    assert check_weights(folder, model) == 22
    assert check_logits(folder, ids, theirs) <= MAX_RELATIVE_ERROR


@pytest.mark.parametrize("family", ["llama", "gemma3_text"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_mixed_bits_with_a_coded_embedding(tiny_model_dir, tmp_path, family, dtype):
    """infopt looks rows up in codes, transformers reads the same values as floats."""
    source = tiny_model_dir(family, tie_word_embeddings=True, dtype=dtype)
    calibration = {"num_sequences": 2, "length": 32}
    quantize_model(
        str(source), "mixed-5", tmp_path / "out", calibration=calibration, progress=False
    )
    ids = random_ids(40)
    model, theirs = load(tmp_path / "out", ids)
    assert check_weights(tmp_path / "out", model) == 22
    assert check_logits(tmp_path / "out", ids, theirs) <= MAX_RELATIVE_ERROR


@pytest.mark.parametrize(
    ("fmt", "activation"),
    [
        (INT8, ActivationFormat("dynamic")),
        (INT8, STATIC),
        (WeightFormat(4, 32), ActivationFormat("dynamic")),
        (FLOAT8, ActivationFormat("dynamic", number="float")),
        (FLOAT8, STATIC_FLOAT8),
    ],
)
def test_activations_are_quantized_as_the_codes_say(
    tiny_model_dir, write_coded, tmp_path, fmt, activation
):
    """transformers rounds the inputs of these layers, with the scale in the file where static."""
    source = open_checkpoint(tiny_model_dir("llama"))
    folder = write_coded(tmp_path / "out", source, blocks(fmt), activation)
    model, theirs = load(folder, random_ids(40))
    assert check_weights(folder, model) == 21
    layer = model.model.layers[1].mlp.down_proj
    inputs = layer.quantization_scheme.input_activations
    assert (inputs.dynamic, inputs.type) == (activation.kind == "dynamic", activation.number)
    if activation.kind == "static":
        assert float(layer.input_scale) == activation.scale
    if activation.number == "float":
        assert check_logits(folder, random_ids(40), theirs) <= MAX_RELATIVE_ERROR
    elif fmt.group_size is None:  # where there are groups, ours have a scale of inputs each
        # Rows are equal until the last bit of a sum moves an input across the border between two
        # codes; from there on, everything that attends to it differs by the step of a code.
        errors = row_errors(folder, random_ids(40), theirs)
        assert int((errors <= 1e-6).sum()) >= 5
        assert float(errors.max()) < 0.05


def test_layers_of_several_formats(tiny_model_dir, write_coded, tmp_path):
    formats = {"mlp": WeightFormat(3, 64), "o_proj": FLOAT8, "self_attn": WeightFormat(2, 32)}

    def format_of(layer: str) -> WeightFormat | None:
        if "layers.1.mlp" in layer:
            return None
        return next((fmt for part, fmt in formats.items() if part in layer), None)

    folder = write_coded(tmp_path / "out", open_checkpoint(tiny_model_dir("llama")), format_of)
    ids = random_ids(40)
    model, theirs = load(folder, ids)
    assert check_weights(folder, model) == 18
    assert check_logits(folder, ids, theirs) <= MAX_RELATIVE_ERROR


@pytest.mark.parametrize("fmt", [WeightFormat(4, 32, False), WeightFormat(8, None, False)])
def test_zero_points_are_read_where_transformers_dequantizes(
    tiny_model_dir, write_coded, tmp_path, fmt
):
    """Kept packed, transformers expects zero points in a shape that compressed-tensors never
    writes; dequantizing, it reads them."""
    from transformers import CompressedTensorsConfig

    folder = write_coded(tmp_path / "out", open_checkpoint(tiny_model_dir("llama")), blocks(fmt))
    ids = random_ids(40)
    config = CompressedTensorsConfig(dequantize=True)
    model, theirs = load(folder, ids, quantization_config=config)
    assert check_weights(folder, model) == 21
    assert check_logits(folder, ids, theirs) <= MAX_RELATIVE_ERROR


@pytest.mark.slow
@pytest.mark.parametrize("fmt", [WeightFormat(4, 64), INT8, FLOAT8], ids=WeightFormat.describe)
def test_smollm2(smollm2_path, write_coded, tmp_path, fmt):
    source = open_checkpoint(smollm2_path)
    folder = write_coded(
        tmp_path / "out", source, lambda layer: INT8 if layer == "lm_head" else fmt
    )
    ids = source.tokenizer().encode("The capital of France is Paris, and the capital of Japan is")
    model, theirs = load(folder, ids)
    assert check_weights(folder, model) == 211
    assert check_logits(folder, ids, theirs) <= MAX_RELATIVE_ERROR
    found = open_checkpoint(folder)
    assert found.config.eos_token_ids == source.config.eos_token_ids
    assert found.tokenizer().chat_template == source.tokenizer().chat_template
    assert isinstance(found.coded("lm_head"), CodedWeight)
