"""GGUF headers: what is read, and what is refused."""

from __future__ import annotations

import struct

import numpy as np
import pytest
from gguf import GGUFReader as PackageReader

from infopt.errors import CheckpointError, UnsupportedModelError
from infopt.models.gguf_reader import GGUFReader, gguf_stored_dtype


def test_metadata_equal_those_of_the_package_reader(make_gguf):
    path = make_gguf(metadata={"general.tags": ["a", "ä"], "general.quantized": True})
    expected = {
        key: field.contents()
        for key, field in PackageReader(path).fields.items()
        if not key.startswith("GGUF.")
    }
    found = GGUFReader(path).metadata
    assert list(found) == list(expected)
    for key, value in expected.items():
        mine = found[key].tolist() if isinstance(found[key], np.ndarray) else found[key]
        assert mine == value, key


def test_tensor_directory_equals_that_of_the_package_reader(make_gguf):
    path = make_gguf(linear_type="Q4_1")
    reader = GGUFReader(path)
    for expected in PackageReader(path).tensors:
        tensor = reader.tensors[expected.name]
        assert tensor.type_name == expected.tensor_type.name
        assert tensor.shape == tuple(expected.shape[::-1].tolist())
        assert reader.data(expected.name).tobytes() == expected.data.tobytes()


def test_closed_reader_gives_no_tensors(make_gguf):
    reader = GGUFReader(make_gguf())
    reader.close()
    assert reader.tensors == {}


@pytest.mark.parametrize("keep", [0, 10, 30, 3000])
def test_a_truncated_file_is_reported(make_gguf, tmp_path, keep):
    path = tmp_path / "cut.gguf"
    path.write_bytes(make_gguf().read_bytes()[:keep])
    with pytest.raises(CheckpointError, match=r"truncated|only \d+ bytes"):
        GGUFReader(path)


def test_a_file_that_ends_inside_a_tensor_names_it(make_gguf, tmp_path):
    path = tmp_path / "cut.gguf"
    path.write_bytes(make_gguf().read_bytes()[:-5000])
    with pytest.raises(CheckpointError, match="ends inside tensor"):
        GGUFReader(path)


def test_another_kind_of_file_is_reported(tmp_path):
    path = tmp_path / "model.gguf"
    path.write_bytes(b"PK\x03\x04" + bytes(100))
    with pytest.raises(CheckpointError, match="instead of"):
        GGUFReader(path)


@pytest.mark.parametrize("version", [1, 4, 3 << 24])
def test_an_unknown_version_or_byte_order_is_refused(make_gguf, tmp_path, version):
    content = bytearray(make_gguf().read_bytes())
    content[4:8] = struct.pack("<I", version)
    path = tmp_path / "other.gguf"
    path.write_bytes(content)
    with pytest.raises(UnsupportedModelError, match="version"):
        GGUFReader(path)


def test_an_unknown_block_type_is_refused_with_the_tensor_name(make_gguf, tmp_path):
    content = make_gguf().read_bytes()
    # name, number of dimensions, one dimension, then the type
    name = b"output_norm.weight"
    position = content.index(name) + len(name) + 4 + 8
    assert content[position : position + 4] == bytes(4)
    path = tmp_path / "odd.gguf"
    path.write_bytes(content[:position] + struct.pack("<I", 999) + content[position + 4 :])
    with pytest.raises(UnsupportedModelError, match=r"output_norm\.weight.*999"):
        GGUFReader(path)


@pytest.mark.parametrize(
    ("metadata", "expected"),
    [({"general.file_type": 15}, "q4_k_m"), ({"general.file_type": 0}, "f32"), ({}, "q8_0")],
)
def test_stored_dtype_is_the_files_own_word_or_its_largest_type(make_gguf, metadata, expected):
    path = make_gguf(
        linear_type="Q8_0", metadata=metadata, tensors={"output.weight": np.zeros((320, 64), "f2")}
    )
    assert gguf_stored_dtype(path) == expected
