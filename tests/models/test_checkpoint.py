"""Which file or folder is opened, and how the others are refused."""

from __future__ import annotations

import shutil

import pytest

from infopt.errors import CheckpointError, ModelNotFoundError, UnsupportedModelError
from infopt.models.checkpoint import find_checkpoint, open_checkpoint
from infopt.models.registry import resolve_model


def test_a_path_a_string_and_a_resolved_model_open_the_same(tiny_model_dir):
    folder = tiny_model_dir("llama")
    resolved = resolve_model(str(folder))
    opened = [open_checkpoint(model) for model in (folder, str(folder), resolved)]
    assert {checkpoint.identity for checkpoint in opened} == {resolved.identity}
    assert {checkpoint.path for checkpoint in opened} == {folder}


def test_a_folder_with_one_gguf_file_is_that_file(make_gguf, tmp_path):
    file = shutil.copy(make_gguf(), tmp_path / "model.gguf")
    assert find_checkpoint(tmp_path) == (file, "gguf")


def test_a_folder_with_several_gguf_files_is_ambiguous(make_gguf, tmp_path):
    for name in ("a.gguf", "b.gguf"):
        shutil.copy(make_gguf(), tmp_path / name)
    with pytest.raises(CheckpointError, match="2 GGUF files"):
        find_checkpoint(tmp_path)


@pytest.mark.parametrize("name", ["pytorch_model.bin", "model.pt", "consolidated.00.pth"])
def test_pickled_weights_are_never_loaded(tmp_path, name):
    (tmp_path / name).write_bytes(b"\x80\x04")
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(UnsupportedModelError, match=f"pickled.*{name}") as error:
        find_checkpoint(tmp_path)
    assert "safetensors" in str(error.value.remedy)


def test_an_empty_folder_holds_no_weights(tmp_path):
    with pytest.raises(CheckpointError, match=r"no \*\.safetensors and no \*\.gguf"):
        find_checkpoint(tmp_path)


def test_another_kind_of_file_is_refused(tmp_path):
    (tmp_path / "model.onnx").write_bytes(b"x")
    with pytest.raises(UnsupportedModelError, match=r"model\.onnx"):
        find_checkpoint(tmp_path / "model.onnx")


def test_nothing_there(tmp_path):
    with pytest.raises(ModelNotFoundError, match="does not exist"):
        open_checkpoint(tmp_path / "absent")
