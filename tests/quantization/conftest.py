"""Fixtures for checkpoints with coded weights: codes of a weight, and folders made by hand."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from infopt.models.checkpoint import Checkpoint, open_checkpoint
from infopt.models.tensor_names import linear_layers
from infopt.quantization.coded import (
    FLOAT8,
    FLOAT_INPUT,
    ActivationFormat,
    CodedWeight,
    WeightFormat,
)
from infopt.quantization.export import CheckpointWriter

Parts = Callable[[str, torch.Tensor], Mapping[str, torch.Tensor] | None]


def _code(
    weight: torch.Tensor,
    fmt: WeightFormat,
    activation: ActivationFormat = FLOAT_INPUT,
    dtype: torch.dtype = torch.float16,
) -> CodedWeight:
    num_out, num_in = weight.shape
    x = weight.float().view(num_out, fmt.num_groups(num_in), -1)
    if fmt.number == "float":
        scale = (x.abs().amax(-1) / 448).to(dtype)
        codes = (weight / scale.float()).clamp(-448, 448).to(FLOAT8)
        return CodedWeight(fmt, codes, scale, None, activation)
    low, high = x.amin(-1).clamp(max=0), x.amax(-1).clamp(min=0)
    scale = (x.abs().amax(-1) / (fmt.middle - 0.5)).to(dtype)
    zero = torch.full(scale.shape, float(fmt.middle))
    if not fmt.symmetric:
        scale = ((high - low) / (fmt.num_codes - 1)).to(dtype)
        zero = (-low / scale.float()).round().clamp(0, fmt.num_codes - 1)
    codes = (x / scale.float()[..., None]).round() + zero[..., None]
    return CodedWeight(
        fmt,
        codes.clamp(0, fmt.num_codes - 1).to(torch.uint8).view(num_out, num_in),
        scale,
        None if fmt.symmetric else zero.to(torch.uint8),
        activation,
    )


@pytest.fixture(scope="session")
def code_weight() -> Callable[..., CodedWeight]:
    """Round a weight to a format: ``code_weight(weight, fmt, activation, dtype_of_scales)``."""
    return _code


@pytest.fixture(scope="session")
def write_coded() -> Callable[..., Path]:
    """Write a folder: ``write_coded(folder, checkpoint, format_of)``.

    ``format_of(layer)`` is the format of a linear layer, or None to keep it dense; of a tied model
    it is asked for ``lm_head`` too.
    """

    def write(
        folder: Path,
        checkpoint: Checkpoint,
        format_of: Callable[[str], WeightFormat | None],
        activation: ActivationFormat = FLOAT_INPUT,
        **options: Any,
    ) -> Path:
        writer = CheckpointWriter(folder, checkpoint, scheme="test", **options)
        for index in [*range(checkpoint.config.num_layers), None]:
            coded = {}
            for layer in {**dict.fromkeys(linear_layers(checkpoint.config)), "lm_head": None}:
                fmt = format_of(layer)
                in_layer = layer.startswith(f"model.layers.{index}.")
                if fmt is None or not (in_layer if index is not None else layer == "lm_head"):
                    continue
                is_tied = layer == "lm_head" and checkpoint.config.tie_word_embeddings
                name = "model.embed_tokens.weight" if is_tied else f"{layer}.weight"
                coded[layer] = _code(checkpoint.get(name), fmt, activation, writer.dtype)
            writer.add_layer(index, coded)
        return writer.finish()

    return write


@pytest.fixture
def packed_folder(tiny_model_dir: Callable[..., Path], tmp_path: Path) -> Callable[..., Path]:
    """A private copy of a small folder whose linear layers are replaced: ``packed_folder(parts)``.

    ``parts(layer, weight)`` gives the tensors that stand for a layer by the last part of their
    names, or None to keep it dense; ``settings`` becomes the ``quantization_config``.
    """

    def make(parts: Parts, settings: Mapping[str, Any], **changes: Any) -> Path:
        folder = Path(shutil.copytree(tiny_model_dir("llama", **changes), tmp_path / "packed"))
        with open_checkpoint(folder) as checkpoint:
            layers = linear_layers(checkpoint.config)
        tensors = load_file(folder / "model.safetensors")
        for layer in layers:
            packed = parts(layer, tensors[f"{layer}.weight"])
            if packed is not None:
                del tensors[f"{layer}.weight"]
                tensors |= {f"{layer}.{part}": tensor for part, tensor in packed.items()}
        save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
        config = json.loads((folder / "config.json").read_text())
        config["quantization_config"] = dict(settings)
        (folder / "config.json").write_text(json.dumps(config))
        return folder

    return make
