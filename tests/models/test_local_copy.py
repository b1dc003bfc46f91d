"""A registered model is found where it lies, and looking for it fetches nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

from infopt.models.local_copy import local_copy
from infopt.models.registry import ModelEntry
from infopt.models.sources import PathSource, WheelSource


def test_local_copy_never_fetches(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("INFOPT_CACHE_DIR", str(tmp_path))
    wheel = WheelSource(("some-model==1",), "model.gguf")
    entry = ModelEntry("m", "gguf", (PathSource(str(tmp_path / "m.gguf")), wheel), "MIT", "q4_1")
    assert local_copy(entry) is None
    cached = tmp_path / "models" / "m.gguf"
    cached.parent.mkdir()
    cached.touch()
    assert local_copy(entry) == cached
    (tmp_path / "m.gguf").touch()
    assert local_copy(entry) == tmp_path / "m.gguf"  # sources count in order
