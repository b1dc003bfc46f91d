"""Names of experts in files: Mixtral's own, one tensor for all experts, and what is refused."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from infopt import LLM
from infopt.errors import CheckpointError
from infopt.models.checkpoint import open_checkpoint
from infopt.models.expert_files import canonical_expert_name

FAMILIES = ["mixtral", "qwen2_moe", "qwen3_moe", "olmoe"]
FUSED = "model.layers.1.mlp.experts.gate_up_proj"
DOWN = "model.layers.1.mlp.experts.down_proj"


@pytest.mark.parametrize(
    ("stored", "name"),
    [
        ("block_sparse_moe.gate.weight", "mlp.gate.weight"),
        ("block_sparse_moe.experts.11.w1.weight", "mlp.experts.11.gate_proj.weight"),
        ("block_sparse_moe.experts.0.w3.weight", "mlp.experts.0.up_proj.weight"),
        ("block_sparse_moe.experts.7.w2.weight", "mlp.experts.7.down_proj.weight"),
        ("block_sparse_moe.experts.7.w4.weight", "block_sparse_moe.experts.7.w4.weight"),
        ("mlp.experts.7.up_proj.weight", "mlp.experts.7.up_proj.weight"),
    ],
)
def test_names_of_mixtral(stored: str, name: str) -> None:
    assert canonical_expert_name(f"model.layers.3.{stored}") == f"model.layers.3.{name}"


@pytest.fixture
def copy_of(tiny_model_dir: Callable[..., Path], tmp_path: Path) -> Callable[..., Path]:
    """A private copy of a small folder with its tensors changed: ``copy_of(family, change)``."""

    def make(family: str, change: Callable[[dict[str, torch.Tensor]], Any]) -> Path:
        folder = Path(shutil.copytree(tiny_model_dir(family), tmp_path / "model"))
        tensors = load_file(folder / "model.safetensors")
        change(tensors)
        save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
        return folder

    return make


def fuse(folder: Path, out: Path) -> Path:
    """Save a model as transformers holds it: one tensor for the experts of a layer."""
    from transformers import AutoModelForCausalLM

    shutil.copytree(folder, out, ignore=shutil.ignore_patterns("*.safetensors"))
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    save_file(
        {name: tensor.contiguous() for name, tensor in model.state_dict().items()},
        out / "model.safetensors",
        metadata={"format": "pt"},
    )
    return out


@pytest.mark.parametrize("family", FAMILIES)
def test_fused_experts_give_the_same_weights(
    tiny_model_dir: Callable[..., Path], tmp_path: Path, family: str
) -> None:
    folder = tiny_model_dir(family)
    fused = fuse(folder, tmp_path / "fused")
    assert FUSED in load_file(fused / "model.safetensors") or family == "qwen3_moe"
    with open_checkpoint(folder) as one, open_checkpoint(fused) as other:
        assert one.names() == other.names()
        for name in one.names():
            assert torch.equal(one.get(name), other.get(name)), name
            assert other.stored_dtype(name) == torch.float32


def test_fused_experts_run(tiny_model_dir: Callable[..., Path], tmp_path: Path) -> None:
    folder = tiny_model_dir("mixtral")
    ids = list(range(4, 60))
    logits = []
    for path in (folder, fuse(folder, tmp_path / "fused")):
        with LLM(str(path), dtype="float32") as llm:
            logits.append(llm.logits(ids))
    assert torch.equal(*logits)


def put_fused(tensors: dict[str, torch.Tensor], **shapes: tuple[int, ...]) -> None:
    """Replace the experts of layer 1 by two tensors."""
    for name in [name for name in tensors if name.startswith("model.layers.1.mlp.experts.")]:
        del tensors[name]
    tensors[FUSED] = torch.zeros(shapes.get("gate_up", (8, 64, 64)))
    tensors[DOWN] = torch.zeros(shapes.get("down", (8, 64, 32)))


@pytest.mark.parametrize(
    "shapes",
    [{"gate_up": (8, 64, 65)}, {"gate_up": (7, 64, 64)}, {"down": (8, 32, 64)}, {"down": (8, 64)}],
)
def test_misshapen_fused_experts_are_named_with_both_shapes(copy_of, shapes) -> None:
    folder = copy_of("qwen2_moe", lambda tensors: put_fused(tensors, **shapes))
    (kind, shape) = next(iter(shapes.items()))
    with pytest.raises(CheckpointError, match=re.escape(str(shape))) as caught:
        open_checkpoint(folder)
    assert caught.value.field == (FUSED if kind == "gate_up" else DOWN)


def test_fused_experts_in_a_dense_layer_are_unknown(copy_of) -> None:
    def change(tensors: dict[str, torch.Tensor]) -> None:
        tensors["model.layers.0.mlp.experts.down_proj"] = torch.zeros(8, 64, 32)

    with pytest.raises(CheckpointError, match=r"layers\.0\.mlp\.experts\.down_proj"):
        open_checkpoint(copy_of("qwen2_moe", change))


@pytest.mark.parametrize(
    "name",
    [
        "mlp.experts.5.up_proj.weight",
        "mlp.gate.weight",
        "mlp.shared_expert_gate.weight",
        "mlp.shared_expert.down_proj.weight",
    ],
)
def test_a_missing_tensor_is_named(copy_of, name: str) -> None:
    full = f"model.layers.1.{name}"
    with pytest.raises(CheckpointError, match="lacks the tensor") as caught:
        open_checkpoint(copy_of("qwen2_moe", lambda tensors: tensors.pop(full)))
    assert caught.value.field == full


def test_an_expert_too_many_is_refused(copy_of) -> None:
    """A configuration with fewer experts than the file would drop some of them."""
    folder = copy_of("qwen2_moe", lambda _: None)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"num_experts": 7}))
    with pytest.raises(CheckpointError, match=r"experts\.7"):
        open_checkpoint(folder)
