"""Published codes are decoded to the numbers they stand for, and the model runs on those."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from infopt import LLM
from infopt.errors import CheckpointError, WeightFormatError
from infopt.models.fallback.stored_codes import decode_folder, fp8_weight, mxfp4_weight

BLOCK = 32


def to_fp8(weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Round one block at a time."""
    rows, columns = weight.shape
    codes = torch.empty(weight.shape, dtype=torch.float8_e4m3fn)
    scales = torch.empty(-(-rows // BLOCK), -(-columns // BLOCK))
    for i in range(scales.shape[0]):
        for j in range(scales.shape[1]):
            where = (slice(i * BLOCK, (i + 1) * BLOCK), slice(j * BLOCK, (j + 1) * BLOCK))
            scales[i, j] = weight[where].abs().max() / 448
            codes[where] = (weight[where] / scales[i, j]).to(torch.float8_e4m3fn)
    return codes, scales


def write(folder: Path, tensors: dict[str, torch.Tensor], **config: Any) -> Path:
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text("utf-8")) | config))
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def logits(folder: Path) -> torch.Tensor:
    with LLM(
        str(folder), dtype="float32", skip_tokenizer_init=True, kv_cache_memory_gib=0.01
    ) as llm:
        return llm.logits([5, 80, 7, 300, 12, 9])


def test_blocks_at_the_edge_are_partial() -> None:
    """576 rows in blocks of 128 leave half a block: the block size comes from the settings."""
    weight = torch.randn(48, 40, generator=torch.Generator().manual_seed(0))
    codes, scales = to_fp8(weight)
    assert scales.shape == (2, 2)
    decoded = fp8_weight(codes, scales, (BLOCK, BLOCK))
    assert (decoded - weight).abs().max() <= weight.abs().max() / 16
    assert float(decoded[47, 39]) == float(codes[47, 39].float() * scales[1, 1])


def test_one_scale_in_all() -> None:
    codes = torch.tensor([[1.0, -2.0]]).to(torch.float8_e4m3fn)
    assert fp8_weight(codes, torch.tensor(0.5), ()).tolist() == [[0.5, -1.0]]


def test_scales_of_another_shape_are_refused() -> None:
    codes = torch.zeros(48, 40).to(torch.float8_e4m3fn)
    with pytest.raises(CheckpointError, match=r"\(2, 2\)"):
        fp8_weight(codes, torch.ones(1, 2), (BLOCK, BLOCK), "w")


def test_mxfp4_by_hand() -> None:
    """Byte 0x21: low half 1 is 0.5, high half 2 is 1.0; scale 128 doubles, 126 halves."""
    codes = torch.full((1, 2, 16), 0x21, dtype=torch.uint8)
    codes[0, 1, 0] = 0xF7
    values = mxfp4_weight(codes, torch.tensor([[128, 126]], dtype=torch.uint8))
    assert values.shape == (1, 64)
    assert values[0, :2].tolist() == [1.0, 2.0]
    assert values[0, 32:36].tolist() == [3.0, -3.0, 0.25, 0.5]


def test_mxfp4_is_what_transformers_reads() -> None:
    from transformers.integrations.mxfp4 import convert_moe_packed_tensors

    generator = torch.Generator().manual_seed(0)
    codes = torch.randint(0, 256, (2, 6, 3, 16), generator=generator).to(torch.uint8)
    scales = torch.randint(118, 132, (2, 6, 3), generator=generator).to(torch.uint8)
    theirs = convert_moe_packed_tensors(codes, scales, dtype=torch.float32)
    assert torch.equal(mxfp4_weight(codes, scales).transpose(1, 2), theirs)


@pytest.mark.parametrize("family", ["deepseek_v3", "minimax_m2"])
def test_fp8_models_run_on_the_decoded_weights(
    family_dir: Callable[[str], Path], tmp_path: Path, family: str
) -> None:
    coded, decoded = {}, {}
    for name, weight in load_file(family_dir(family) / "model.safetensors").items():
        coded[name] = decoded[name] = weight
        if ".layers." in name and weight.ndim == 2 and not name.endswith("mlp.gate.weight"):
            codes, scales = to_fp8(weight)
            coded[name], coded[f"{name}_scale_inv"] = codes, scales
            decoded[name] = fp8_weight(codes, scales, (BLOCK, BLOCK))
    folders = [shutil.copytree(family_dir(family), tmp_path / kind) for kind in ("float", "fp8")]
    settings = {"quant_method": "fp8", "weight_block_size": [BLOCK, BLOCK]}
    expected = logits(write(folders[0], decoded))
    assert torch.equal(logits(write(folders[1], coded, quantization_config=settings)), expected)
    assert not torch.equal(logits(family_dir(family)), expected)


def test_mxfp4_models_run_on_the_decoded_weights(
    family_dir: Callable[[str], Path], tmp_path: Path
) -> None:
    generator = torch.Generator().manual_seed(0)
    coded, decoded = {}, {}
    for name, weight in load_file(family_dir("gpt_oss") / "model.safetensors").items():
        coded[name] = decoded[name] = weight
        if name.endswith(("experts.gate_up_proj", "experts.down_proj")):
            experts, num_in, num_out = weight.shape
            shape = (experts, num_out, num_in // 32, 16)
            codes = torch.randint(0, 256, shape, generator=generator).to(torch.uint8)
            scales = torch.full(shape[:-1], 123, dtype=torch.uint8)
            del coded[name]
            coded[f"{name}_blocks"], coded[f"{name}_scales"] = codes, scales
            decoded[name] = mxfp4_weight(codes, scales).transpose(1, 2).contiguous()
    folders = [shutil.copytree(family_dir("gpt_oss"), tmp_path / kind) for kind in ("float", "mx")]
    expected = logits(write(folders[0], decoded))
    settings = {"quant_method": "mxfp4"}
    assert torch.equal(logits(write(folders[1], coded, quantization_config=settings)), expected)


def test_a_missing_scale_is_named(family_dir: Callable[[str], Path], tmp_path: Path) -> None:
    folder = shutil.copytree(family_dir("minimax_m2"), tmp_path / "broken")
    tensors = load_file(folder / "model.safetensors")
    name = "model.layers.0.self_attn.q_proj.weight"
    tensors[name] = tensors[name].to(torch.float8_e4m3fn)
    write(folder, tensors)
    with pytest.raises(CheckpointError, match=f"{name}_scale_inv"):
        decode_folder(folder, {"quant_method": "fp8"}, torch.float32)


def test_other_codes_are_refused_by_name(family_dir: Callable[[str], Path]) -> None:
    with pytest.raises(WeightFormatError, match="hqq"):
        decode_folder(family_dir("gpt_oss"), {"quant_method": "hqq"}, torch.float32)
