"""A draft head on disk, and what is refused."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from infopt.errors import CheckpointError, ConfigError, ModelNotFoundError
from infopt.speculative.head import HeadConfig, HeadWeights, read_head, write_head
from infopt.speculative.head.weights import shapes_of

CONFIG = HeadConfig(8, 16, 5, 20, 1e-5, "model")


def weights() -> HeadWeights:
    generator = torch.Generator().manual_seed(0)
    made = {
        name: torch.randn(shape, generator=generator) for name, shape in shapes_of(CONFIG).items()
    }
    return HeadWeights(**(made | {"token_ids": torch.tensor([1, 3, 4, 9, 19])}))


def test_what_is_written_is_read(tmp_path: Path) -> None:
    given = weights()
    write_head(tmp_path / "a" / "head", CONFIG, given, {"seed": 3})
    folder = read_head(tmp_path / "a" / "head")
    assert folder.config == CONFIG
    assert folder.record == {"seed": 3}
    for name, tensor in given.to_dict().items():
        assert torch.equal(folder.weights.to_dict()[name], tensor)


@pytest.mark.parametrize("ids", [[1, 3, 3, 9, 19], [1, 3, 4, 9, 20], [-1, 3, 4, 9, 19]])
def test_ids_must_ascend_within_the_vocabulary(tmp_path: Path, ids: list[int]) -> None:
    bad = dataclasses.replace(weights(), token_ids=torch.tensor(ids))
    with pytest.raises(CheckpointError, match=r"ascend within 0 \.\. 19"):
        write_head(tmp_path, CONFIG, bad, {})


def test_wrong_shapes_are_named(tmp_path: Path) -> None:
    bad = dataclasses.replace(weights(), down=torch.zeros(8, 15))
    with pytest.raises(CheckpointError, match="down has the shape"):
        write_head(tmp_path, CONFIG, bad, {})


def test_broken_folders_are_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(ModelNotFoundError, match="infopt train-draft"):
        read_head(tmp_path)
    write_head(tmp_path, CONFIG, weights(), {})
    config = tmp_path / "config.json"
    values = json.loads(config.read_text("utf-8"))
    config.write_text(json.dumps(values | {"layers": 2}), "utf-8")
    with pytest.raises(ConfigError, match="layers"):
        read_head(tmp_path)
    config.write_text(json.dumps(values | {"format": "other"}), "utf-8")
    with pytest.raises(CheckpointError, match="infopt-draft-head-1"):
        read_head(tmp_path)
    config.write_text(json.dumps(values), "utf-8")
    tensors = load_file(tmp_path / "head.safetensors")
    del tensors["down"]
    save_file(tensors, tmp_path / "head.safetensors")
    with pytest.raises(CheckpointError, match="does not hold"):
        read_head(tmp_path)
