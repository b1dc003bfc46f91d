"""`infopt train-tiny`: a short training, its table, and refusals."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest

from infopt.training import RECIPES, recipes


@pytest.fixture(autouse=True)
def small_draft(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a step of the draft model read 64 tokens."""
    sizes = {"tokens_per_step": 64, "context": 32, "long_context": 64}
    small = dataclasses.replace(RECIPES["tiny-draft"], **sizes)
    monkeypatch.setattr(recipes, "RECIPES", MappingProxyType({"tiny-draft": small}))


def test_prints_perplexity_beside_the_bigrams(run_cli: Any, tmp_path: Path) -> None:
    out = tmp_path / "model"
    args = ["train-tiny", "tiny-draft", "--out", str(out), "--steps", "2", "--seed", "3"]
    text = run_cli(*args).output
    assert "tiny-draft: not learned" in text
    assert "smoothed bigram" in text
    assert all(kind in text for kind in ("docs", "code"))
    assert (out / "model.safetensors").exists()
    assert (out / "loss.csv").exists()


def test_an_unknown_model_and_no_steps_are_refused(run_cli: Any, tmp_path: Path) -> None:
    result = run_cli("train-tiny", "tiny-drafd", "--out", str(tmp_path), ok=False)
    assert "Did you mean 'tiny-draft'" in result.output
    result = run_cli("train-tiny", "tiny-draft", "--out", str(tmp_path), "--steps", "0", ok=False)
    assert "needs a step" in result.output
