from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from infopt.results import code_identity, hardware_id, identity, library_versions


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A git repository that looks like a checkout of the package."""
    package = tmp_path / "src" / "infopt"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("")
    (tmp_path / "kernels").mkdir()
    (tmp_path / "kernels" / "k.py").write_text("")
    (tmp_path / "README").write_text("")
    (package / "kernels").symlink_to("../../kernels")
    git(tmp_path, "init", "--quiet")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "--quiet", "-m", "first")
    monkeypatch.setattr(identity, "_PACKAGE", package)
    code_identity.cache_clear()
    yield tmp_path
    code_identity.cache_clear()


def git(folder: Path, *arguments: str) -> str:
    identity_options = ["-c", "user.name=t", "-c", "user.email=t@example.org"]
    return subprocess.run(
        ["git", *identity_options, *arguments],
        cwd=folder,
        check=True,
        capture_output=True,
        text=True,
    ).stdout.strip()


def fresh() -> str:
    code_identity.cache_clear()
    return code_identity()


def test_a_clean_checkout_is_its_commit(checkout: Path) -> None:
    assert code_identity() == git(checkout, "rev-parse", "HEAD")
    (checkout / "README").write_text("text is no code")
    assert fresh() == git(checkout, "rev-parse", "HEAD")


@pytest.mark.parametrize("name", ["src/infopt/__init__.py", "src/infopt/new.py", "kernels/k.py"])
def test_changed_code_is_dirty_and_told_apart(checkout: Path, name: str) -> None:
    """Two different working trees on one commit must not pass for the same code."""
    commit = git(checkout, "rev-parse", "HEAD")
    (checkout / name).write_text("a = 1")
    first = fresh()
    (checkout / name).write_text("a = 2")
    second = fresh()
    assert first.startswith(f"{commit}-dirty-") and second.startswith(f"{commit}-dirty-")
    assert first != second
    assert fresh() == second


def test_the_identity_is_that_of_the_start(checkout: Path) -> None:
    first = code_identity()
    (checkout / "src" / "infopt" / "new.py").write_text("a = 1")
    assert code_identity() == first


def test_an_installation_inside_another_repository_is_a_version(
    checkout: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    installed = checkout / ".venv" / "infopt"
    installed.mkdir(parents=True)
    (installed / "__init__.py").write_text("")
    monkeypatch.setattr(identity, "_PACKAGE", installed)
    assert fresh().startswith("version:")


def test_without_git_it_is_a_version(checkout: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(checkout))
    assert fresh().startswith("version:")


def test_versions_name_the_libraries() -> None:
    versions = library_versions()
    assert versions["torch"] and versions["python"] and versions["infopt"]


def test_hardware_ids_follow_the_content() -> None:
    assert hardware_id({"a": 1, "b": 2}) == hardware_id({"b": 2, "a": 1})
    assert hardware_id({"a": 1}) != hardware_id({"a": 2})
