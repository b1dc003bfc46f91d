"""The identity follows the content: not the name, and every region of a large file counts."""

from __future__ import annotations

import shutil

import pytest

from infopt.models.fingerprint import content_identity

SIZE = 6 << 20


def test_copying_and_renaming_keep_the_identity(tiny_model_dir, make_gguf, tmp_path):
    folder, file = tiny_model_dir("llama"), make_gguf()
    assert content_identity(shutil.copytree(folder, tmp_path / "b")) == content_identity(folder)
    assert content_identity(shutil.copy(file, tmp_path / "x.gguf")) == content_identity(file)


def test_other_weights_and_another_configuration_have_another_identity(tiny_model_dir, tmp_path):
    base = tiny_model_dir("llama")
    identities = {content_identity(base), content_identity(tiny_model_dir("llama", seed=1))}
    copy = shutil.copytree(base, tmp_path / "copy")
    config = (copy / "config.json").read_text()
    (copy / "config.json").write_text(config.replace("10000.0", "20000.0"))
    identities.add(content_identity(copy))
    assert len(identities) == 3


def test_the_tokenizer_is_no_part_of_it(tiny_model_dir, tmp_path):
    base = tiny_model_dir("llama")
    copy = shutil.copytree(base, tmp_path / "copy")
    (copy / "tokenizer.json").unlink()
    assert content_identity(copy) == content_identity(base)


@pytest.mark.parametrize("start", [0, 1 << 20, SIZE // 2, SIZE - (1 << 20) - 65536, SIZE - 1])
def test_a_changed_stretch_anywhere_changes_it(tmp_path, start):
    path = tmp_path / "weights.gguf"
    content = bytearray(SIZE)
    path.write_bytes(content)
    before = content_identity(path)
    content[start : start + 65536] = b"\x01" * len(content[start : start + 65536])
    path.write_bytes(content)
    assert content_identity(path) != before


@pytest.mark.parametrize("size", [0, 1, (1 << 20) - 1, 1 << 20, (1 << 20) + 1, 2 << 20])
def test_every_byte_of_a_small_file_counts(tmp_path, size):
    path = tmp_path / "small"
    path.write_bytes(bytes(size))
    before = content_identity(path)
    path.write_bytes(bytes(size - 1) + b"\x01" if size else b"\x01")
    assert content_identity(path) != before
