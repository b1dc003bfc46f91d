"""`infopt train-draft`: a short training, its table, and refusals."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any


def test_a_short_training(
    run_cli: Callable[..., Any], tiny_model_dir: Callable[..., Path], tmp_path: Path
) -> None:
    out = tmp_path / "head"
    args = ["train-draft", str(tiny_model_dir("llama")), "--out", str(out), "--tokens", "600"]
    result = run_cli(*args, "--steps", "2", "--minutes", "5", "--draft-tokens", "40")
    assert "agrees with the model" in result.stdout
    assert "tokens per pass" in result.stdout
    config = json.loads((out / "config.json").read_text("utf-8"))
    assert config["num_draft_tokens"] == 40
    assert json.loads((out / "training.json").read_text("utf-8"))["num_steps"] == 2


def test_refusals_are_messages(run_cli: Callable[..., Any], tmp_path: Path) -> None:
    result = run_cli(
        "train-draft", "tiny-dense", "--out", str(tmp_path), "--minutes", "0", ok=False
    )
    assert "minutes must be above 0" in result.stderr
