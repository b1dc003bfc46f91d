"""A draft head is trained once per model, recipe and code."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from infopt.config import EngineConfig
from infopt.errors import MeasurementError
from infopt.results import write_json
from infopt.training import kept_head
from infopt.training.head import HeadRecipe


def test_a_head_is_trained_once_per_model_and_recipe(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("INFOPT_CACHE_DIR", str(tmp_path))
    trained: list[tuple[EngineConfig, HeadRecipe]] = []

    def note(config: EngineConfig, out: Path, recipe: HeadRecipe, **options: Any) -> None:
        trained.append((config, recipe))
        write_json(out / "training.json", {"best": {"tokens_per_pass": 1.5}})
        if config.num_threads == 7:
            raise MeasurementError("stopped halfway", field="x", value=1)

    monkeypatch.setattr(kept_head, "train_head", note)
    model = {"model": "some-model", "identity": "one"}
    with pytest.raises(MeasurementError):
        kept_head.train(model, 1.4, num_threads=7)
    first = kept_head.train(model, 1.4, num_threads=1)
    assert len(trained) == 2, "half a head is none"
    assert first["training"] == {"best": {"tokens_per_pass": 1.5}}
    assert (Path(first["folder"]) / "training.json").is_file()
    assert kept_head.train(model, 1.4, num_threads=1) == first
    assert len(trained) == 2
    config, recipe = trained[-1]
    assert (config.model, config.quantization, recipe.minutes) == ("some-model", "none", 1.4)
    others = [
        kept_head.train(model, 2.0),
        kept_head.train({**model, "identity": "two"}, 1.4),
    ]
    monkeypatch.setattr(kept_head, "_code", lambda: b"better")
    others.append(kept_head.train(model, 1.4))
    assert len({head["folder"] for head in (first, *others)}) == 4
