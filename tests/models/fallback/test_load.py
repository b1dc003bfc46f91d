"""Checkpoints are loaded whole or refused by name."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from infopt.errors import CheckpointError, UnsupportedModelError, WeightFormatError
from infopt.models.fallback.load import Loaded, load
from infopt.models.fallback.route import find_route


def load_folder(folder: Path, dtype: torch.dtype = torch.float32) -> Loaded:
    route = find_route(folder)
    assert route is not None
    return load(route, dtype, torch.device("cpu"))


@pytest.fixture
def copy(family_dir: Callable[[str], Path], tmp_path: Path) -> Callable[..., Path]:
    """Factory: a copy of a checkpoint with another config.json and other tensors."""

    def make(
        family: str, change: Callable[[dict[str, torch.Tensor]], None] | None = None, **values: Any
    ) -> Path:
        folder = tmp_path / family
        shutil.copytree(family_dir(family), folder)
        path = folder / "config.json"
        path.write_text(json.dumps(json.loads(path.read_text("utf-8")) | values))
        if change is not None:
            tensors = load_file(folder / "model.safetensors")
            change(tensors)
            save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
        return folder

    return make


def test_facts_come_from_the_configuration(family_dir: Callable[[str], Path]) -> None:
    loaded = load_folder(family_dir("gpt_oss"))
    assert loaded.config.family == "gpt_oss"
    assert loaded.config.vocab_size == loaded.config.num_real_tokens == 320
    assert loaded.config.eos_token_ids == (1,)
    assert (loaded.config.num_experts, loaded.config.top_k) == (4, 2)
    assert loaded.why_unpaged is None
    assert loaded.ignored == ()


def test_weights_get_the_type_asked_for(family_dir: Callable[[str], Path]) -> None:
    loaded = load_folder(family_dir("gemma2"), torch.bfloat16)
    assert {w.dtype for w in loaded.causal.parameters()} == {torch.bfloat16}


def test_vision_towers_are_dropped(family_dir: Callable[[str], Path]) -> None:
    loaded = load_folder(family_dir("kimi_k25"))
    assert loaded.config.family == "deepseek_v3"
    assert not any("vision" in name for name, _ in loaded.causal.named_parameters())
    assert not any(w.is_meta for w in loaded.causal.parameters())


def test_a_missing_tensor_is_refused(copy: Callable[..., Path]) -> None:
    """transformers would fill it with random numbers and only warn."""
    name = "model.layers.1.self_attn.sinks"
    folder = copy("gpt_oss", lambda tensors: tensors.pop(name))
    with pytest.raises(CheckpointError, match=name):
        load_folder(folder)


def test_a_misshapen_tensor_is_refused(copy: Callable[..., Path]) -> None:
    def change(tensors: dict[str, torch.Tensor]) -> None:
        tensors["model.norm.weight"] = torch.ones(63)

    with pytest.raises(CheckpointError, match="mismatched"):
        load_folder(copy("gpt_oss", change))


def test_a_tensor_without_use_is_recorded(
    copy: Callable[..., Path], caplog: pytest.LogCaptureFixture
) -> None:
    def change(tensors: dict[str, torch.Tensor]) -> None:
        tensors["model.extra.weight"] = torch.ones(3)

    loaded = load_folder(copy("gpt_oss", change))
    assert loaded.ignored == ("model.extra.weight",)
    assert "model.extra.weight" in caplog.text


def test_codes_are_refused(copy: Callable[..., Path]) -> None:
    folder = copy("gpt_oss", quantization_config={"quant_method": "bitnet"})
    with pytest.raises(WeightFormatError, match="bitnet"):
        load_folder(folder)


def test_bidirectional_attention_is_refused(copy: Callable[..., Path]) -> None:
    folder = copy("gemma4_text", use_bidirectional_attention="all")
    with pytest.raises(UnsupportedModelError, match="use_bidirectional_attention"):
        load_folder(folder)


def test_impossible_values_are_refused(copy: Callable[..., Path]) -> None:
    folder = copy("gpt_oss", hidden_size="wide")
    with pytest.raises(CheckpointError, match="gpt_oss"):
        load_folder(folder)


@pytest.mark.parametrize(
    ("family", "reason"),
    [
        ("deepseek_v4", "not one entry per token"),
        ("lfm2", "not one entry per token"),
        ("falcon", "attention of their own"),
    ],
)
def test_states_of_their_own(family_dir: Callable[[str], Path], family: str, reason: str) -> None:
    loaded = load_folder(family_dir(family))
    assert loaded.why_unpaged is not None and reason in loaded.why_unpaged
