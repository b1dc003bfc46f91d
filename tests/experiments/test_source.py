"""Identity of the code: what changes numbers changes it, what does not, does not."""

import shutil
from pathlib import Path

import pytest

import infopt
from infopt.errors import ConfigError
from infopt.experiments import source
from infopt.experiments.source import part_of, source_files, source_identity


@pytest.fixture
def package(tmp_path, monkeypatch):
    """A copy of a small package in place of the real one."""
    folder = tmp_path / "infopt"
    (folder / "engine").mkdir(parents=True)
    (folder / "select").mkdir()
    (folder / "plotting").mkdir()
    (folder / "kernels").mkdir()
    (folder / "engine" / "step.py").write_text('"""Old."""\n\n\ndef f():\n    return 1  # one\n')
    (folder / "select" / "rule.py").write_text("x = 1\n")
    (folder / "plotting" / "bars.py").write_text("y = 1\n")
    (folder / "kernels" / "a.cpp").write_text("int a;\n")
    monkeypatch.setattr(source, "_PACKAGE", folder)
    source_identity.cache_clear()
    yield folder
    source_identity.cache_clear()


def identities():
    source_identity.cache_clear()
    return {part: source_identity(part) for part in ("measure", "select", "present")}


def changed(before):
    after = identities()
    return {part for part in before if before[part] != after[part]}


@pytest.mark.parametrize(
    ("file", "text", "parts"),
    [
        ("engine/step.py", "def f():\n    return 2\n", {"measure"}),
        ("kernels/a.cpp", "int b;\n", {"measure"}),
        ("select/rule.py", "x = 2\n", {"select"}),
        ("plotting/bars.py", "y = 2\n", {"present"}),
        ("engine/new.py", "z = 1\n", {"measure"}),
        ("engine/step.py", '"""New."""\n\ndef f():\n    """Why."""\n    return 1\n', set()),
    ],
)
def test_code_changes_the_identity_of_its_part_and_comments_of_none(package, file, text, parts):
    before = identities()
    (package / file).write_text(text)
    assert changed(before) == parts


def test_the_version_is_part_of_it(package, monkeypatch):
    before = identities()
    monkeypatch.setattr(infopt, "__version__", "99.0")
    assert changed(before) == {"measure", "select", "present"}
    assert source_identity("measure").startswith("99.0+")


def test_a_commit_is_not(package, tmp_path):
    """A commit changes no number; rerunning hours of measuring after each would be absurd."""
    before = identities()
    copy = tmp_path / "elsewhere"
    shutil.copytree(package, copy)
    source._PACKAGE = copy
    assert changed(before) == set()


@pytest.mark.parametrize(
    ("file", "part"),
    [
        ("engine/scheduler.py", "measure"),
        ("bench/paired.py", "measure"),
        ("experiments/slices.py", "measure"),
        ("kernels/csrc/cpu/rotary.cpp", "measure"),
        ("select/recommend.py", "select"),
        ("experiments/choose.py", "select"),
        ("plotting/bars.py", "present"),
        ("experiments/findings/data.py", "present"),
        ("cli/main.py", None),
        ("experiments/config.py", None),
    ],
)
def test_parts_of_the_package(file, part):
    assert part_of(Path(file)) == part


def test_kernels_are_found_through_their_link():
    names = {path.suffix for path in source_files("measure") if "kernels" in path.parts}
    assert ".cpp" in names


def test_an_unknown_part_is_named():
    with pytest.raises(ConfigError, match=r"'mesure'.*'measure'"):
        source_identity("mesure")
