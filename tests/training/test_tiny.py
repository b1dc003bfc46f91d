"""A training leaves a checkpoint that loads, with its record, table and picture."""

from __future__ import annotations

import csv
import json
import struct
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors import safe_open

from infopt.errors import ConfigError
from infopt.models.checkpoint import open_checkpoint
from infopt.training import train_tiny
from infopt.training.recipes import Recipe
from infopt.training.tiny import RECORD_NAME, STATE_NAME, load_float32


@pytest.fixture(scope="module")
def moe_folder(
    small_recipe: Callable[..., Recipe], tmp_path_factory: pytest.TempPathFactory
) -> Path:
    folder = tmp_path_factory.mktemp("trained") / "moe"
    trained = train_tiny(small_recipe("tiny-moe"), folder, num_steps=3, show_progress=False)
    assert trained.folder == folder
    assert not trained.is_learned  # after three steps
    return folder


def test_it_loads_with_transformers_and_is_stored_in_bfloat16(moe_folder: Path) -> None:
    model = load_float32(moe_folder)
    assert model.config.num_experts == 8
    logits = model(input_ids=torch.tensor([[5, 6, 7]])).logits
    assert logits.shape == (1, 3, 1024)
    (file,) = moe_folder.glob("*.safetensors")
    with safe_open(file, framework="pt") as stored:
        assert {stored.get_slice(n).get_dtype() for n in stored.keys()} == {"BF16"}  # noqa: SIM118


def test_the_record_says_how_it_was_made(moe_folder: Path) -> None:
    record = json.loads((moe_folder / RECORD_NAME).read_text())
    assert (record["seed"], record["num_steps"], record["num_tokens"]) == (0, 3, 768)
    assert record["recipe"]["architecture"]["num_experts_per_tok"] == 2
    assert record["versions"]["torch"].startswith(torch.__version__.split("+")[0])
    assert set(record["validation"]) == {"docs", "code"}
    assert record["validation"]["docs"]["share"] > 1
    assert sum(record["routing_shares"][0]) == pytest.approx(1, abs=1e-3)
    assert record["num_active_parameters"] < record["num_parameters"]


def test_the_curve_is_there_as_table_and_picture(moe_folder: Path) -> None:
    with (moe_folder / "loss.csv").open() as file:
        (row,) = list(csv.DictReader(file))
    assert (row["step"], row["tokens"]) == ("3", "768")
    assert float(row["loss"]) == pytest.approx(6.9, abs=0.5)
    assert float(row["heldout_loss"]) == pytest.approx(6.9, abs=0.5)
    picture = (moe_folder / "loss.png").read_bytes()
    width, height = struct.unpack(">II", picture[16:24])
    assert picture.startswith(b"\x89PNG")
    assert min(width, height) > 200


def test_no_state_is_left_behind(moe_folder: Path) -> None:
    assert not (moe_folder / STATE_NAME).exists()


def test_the_engine_opens_a_dense_model(
    small_recipe: Callable[..., Recipe], tmp_path: Path
) -> None:
    train_tiny(small_recipe("tiny-draft"), tmp_path, num_steps=1, show_progress=False)
    with open_checkpoint(tmp_path) as checkpoint:
        assert checkpoint.config.num_real_tokens == 1024
        assert checkpoint.config.eos_token_ids == (0,)
        assert checkpoint.tokenizer().bos_token_id is None


def test_a_training_needs_a_step(small_recipe: Callable[..., Recipe], tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="needs a step, got 0"):
        train_tiny(small_recipe(), tmp_path, num_steps=0)
    assert not list(tmp_path.iterdir())
