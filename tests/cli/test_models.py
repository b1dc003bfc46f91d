"""`infopt models`: the registry, and one more file of it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from infopt.models import registry


@pytest.fixture(autouse=True)
def own_registry(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Keep entries of a test out of other tests, and this folder's registry file out of it."""
    monkeypatch.setattr(registry, "_entries", {e.slug: e for e in registry._BUILT_IN})
    monkeypatch.chdir(tmp_path)


def write_registry(path: Path, target: Path) -> None:
    path.parent.mkdir(exist_ok=True)
    path.write_text(
        f"models:\n  mine:\n    format: gguf\n    licence: MIT\n    stored_dtype: float32\n"
        f"    description: A file of mine.\n    sources: [{{path: {target}}}]\n"
    )


def test_lists_built_in_models(run_cli: Any) -> None:
    rows = {row["slug"]: row for row in json.loads(run_cli("models", "--json").stdout)}
    assert rows["smollm2-135m-instruct-q4_1"]["licence"] == "Apache-2.0"
    assert rows["gemma-3-270m-q4_k_m"]["licence"] == "Gemma Terms of Use"
    text = run_cli("models").stdout
    assert all(slug in text for slug in rows)


def test_registry_file_adds_models(run_cli: Any, tmp_path: Path) -> None:
    target = tmp_path / "mine.gguf"
    write_registry(tmp_path / "more.yaml", target)
    args = ["models", "--registry", str(tmp_path / "more.yaml")]
    rows = {row["slug"]: row for row in json.loads(run_cli(*args, "--json").stdout)}
    assert rows["mine"]["path"] is None
    target.touch()
    rows = {row["slug"]: row for row in json.loads(run_cli(*args, "--json").stdout)}
    assert rows["mine"]["path"] == str(target)


def test_registry_of_the_folder_is_read_by_itself(run_cli: Any, tmp_path: Path) -> None:
    write_registry(tmp_path / "config" / "models.yaml", tmp_path / "mine.gguf")
    assert "A file of mine." in run_cli("models").stdout


def test_fetch_prints_the_path(run_cli: Any, smollm2_path: Path) -> None:
    result = run_cli("models", "fetch", "smollm2-135m-instruct-q4_1")
    assert result.stdout.strip() == str(smollm2_path)
