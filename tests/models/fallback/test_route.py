"""What runs natively, what through transformers, and what not at all."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from infopt.errors import ModelNotFoundError, UnsupportedModelError
from infopt.models.fallback.route import find_route


def changed(folder: Path, target: Path, **values: Any) -> Path:
    """Copy a checkpoint and change its config.json."""
    shutil.copytree(folder, target)
    path = target / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text("utf-8")) | values))
    return target


def test_native_families_have_no_route(tiny_model_dir: Callable[..., Path]) -> None:
    assert find_route(tiny_model_dir("llama")) is None


def test_gguf_files_are_native(smollm2_path: Path) -> None:
    assert find_route(smollm2_path) is None


def test_other_families_have_one_with_the_reason(family_dir: Callable[[str], Path]) -> None:
    route = find_route(family_dir("gpt_oss"))
    assert route is not None
    assert "gpt_oss" in route.reason
    assert route.raw["model_type"] == "gpt_oss"


def test_aliases_are_resolved(family_dir: Callable[[str], Path]) -> None:
    route = find_route(family_dir("kimi_k2"))
    assert route is not None
    assert "kimi_k2" in route.reason
    assert route.raw["model_type"] == "deepseek_v3"


def test_text_parts_have_one(family_dir: Callable[[str], Path]) -> None:
    assert find_route(family_dir("kimi_k25")) is not None


def test_a_setting_that_is_not_native_has_one(
    tiny_model_dir: Callable[..., Path], tmp_path: Path
) -> None:
    folder = changed(tiny_model_dir("olmoe"), tmp_path / "clipped", clip_qkv=8.0)
    route = find_route(folder)
    assert route is not None and "clip_qkv" in route.reason


@pytest.mark.parametrize("name", ["vit", "no_such_family"])
def test_nobody_runs_it(family_dir: Callable[[str], Path], tmp_path: Path, name: str) -> None:
    folder = changed(family_dir("gpt_oss"), tmp_path / name, model_type=name)
    with pytest.raises(UnsupportedModelError, match=name):
        find_route(folder)


def test_nothing_there(tmp_path: Path) -> None:
    with pytest.raises(ModelNotFoundError):
        find_route(tmp_path / "absent")
