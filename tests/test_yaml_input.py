"""YAML that people wrote: what is wrong with it is said by name."""

from __future__ import annotations

from pathlib import Path

import pytest

from infopt.errors import ConfigError, ResultError
from infopt.yaml_input import read_yaml


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"a: [", "expected"),
        (b"a: \xff", "utf-8"),
        (b"a: 1\nb: 2\na: 3\n", "'a' is there twice"),
        (b"outer:\n  - {a: 1, a: 2}\n", "'a' is there twice"),
        (b"!!python/object/apply:os.getcwd []", "could not determine a constructor"),
        (b"a: 1\n---\nb: 2\n", "single document"),
    ],
)
def test_what_is_wrong_is_named_with_the_file(tmp_path: Path, content: bytes, words: str) -> None:
    """Pins: of a key that is there twice the last was taken without a word."""
    path = tmp_path / "mine.yaml"
    path.write_bytes(content)
    with pytest.raises(ResultError, match=words) as error:
        read_yaml(path, field="mine", error=ResultError, remedy="Correct it.")
    assert str(path) in error.value.message
    assert (error.value.field, error.value.remedy) == ("mine", "Correct it.")


@pytest.mark.parametrize("name", ["absent.yaml", "."])
def test_what_is_no_file_is_named(tmp_path: Path, name: str) -> None:
    with pytest.raises(ConfigError, match="cannot be read"):
        read_yaml(tmp_path / name, field="config")


def test_everything_else_is_read_as_yaml_reads_it(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text("base: &base {a: 1, b: 2}\nmine: {<<: *base, a: 3}\nlist: [1, null, on]\n")
    assert read_yaml(path, field="mine") == {
        "base": {"a": 1, "b": 2},
        "mine": {"a": 3, "b": 2},
        "list": [1, None, True],
    }
    path.write_text("")
    assert read_yaml(path, field="mine") is None
