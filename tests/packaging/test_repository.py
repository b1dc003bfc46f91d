"""Rules about files that no other tool checks."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TEXT_SUFFIXES = {
    ".py", ".md", ".yaml", ".yml", ".toml", ".json", ".smk", ".txt", ".ipynb", ".rst", ".cfg",
    ".cpp", ".h", ".cu", ".csv", ".jsonl", ".html", ".css", "",
}  # fmt: skip
MACHINE_PATH = re.compile(r"(?<![\w.])/(?:home|root|Users|work|mnt|workspace)/[\w.-]+")


def repository_files() -> list[Path]:
    """Return the files under version control, or about to be."""
    out = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    if out.returncode != 0:
        pytest.skip("not a git checkout (an unpacked sdist has no list of its files)")
    paths = [ROOT / name for name in out.stdout.split("\0") if name]
    return [p for p in paths if p.is_file()]


def test_kernels_is_no_regular_package() -> None:
    """A regular package of that name would hide the library that transformers looks for.

    A folder without ``__init__.py`` can never hide an installed package.
    """
    assert not (ROOT / "kernels" / "__init__.py").exists()
    names = {p.name for p in (ROOT / "kernels").rglob("*") if p.is_dir()}
    assert not names & {"triton", "cuda_python", "torch"}, "would hide the library when run there"


def test_kernels_link_is_relative() -> None:
    """An absolute link works on one machine."""
    link = ROOT / "src" / "infopt" / "kernels"
    assert link.is_symlink()
    assert os.readlink(link) == "../../kernels"  # noqa: PTH115 (the text, not the target)


def notebooks() -> list[Path]:
    return sorted((ROOT / "notebooks").glob("*.ipynb"))


@pytest.mark.parametrize("path", notebooks(), ids=lambda p: p.name)
def test_notebook_has_no_outputs(path: Path) -> None:
    cells = json.loads(path.read_text("utf-8"))["cells"]
    code = [cell for cell in cells if cell["cell_type"] == "code"]
    assert code
    assert all(cell["outputs"] == [] and cell["execution_count"] is None for cell in code)


@pytest.mark.parametrize("path", notebooks(), ids=lambda p: p.name)
def test_notebook_has_one_parameters_cell_and_starts_with_prose(path: Path) -> None:
    cells = json.loads(path.read_text("utf-8"))["cells"]
    tagged = [c for c in cells if "parameters" in c["metadata"].get("tags", [])]
    assert len(tagged) == 1
    assert cells[0]["cell_type"] == "markdown"


def test_no_path_of_a_machine() -> None:
    """A path that exists on the author's machine alone breaks everywhere else."""
    found = []
    for path in repository_files():
        if path.suffix not in TEXT_SUFFIXES or path == Path(__file__):
            continue
        for number, line in enumerate(path.read_text("utf-8").splitlines(), start=1):
            if MACHINE_PATH.search(line):
                found.append(f"{path.relative_to(ROOT)}:{number}: {line.strip()[:80]}")
    assert not found


def test_the_path_rule_can_fail() -> None:
    assert MACHINE_PATH.search("open('/home/" + "someone/model.gguf')")
    assert not MACHINE_PATH.search("src/work/x and https://example.org/home/page")


def test_files_are_small() -> None:
    """Large files belong into the cache or a package, not into history."""
    large = [p for p in repository_files() if p.stat().st_size > 2 * 2**20]
    assert not large


def test_snakefile_is_at_the_top_only() -> None:
    """Snakemake takes the first of two and ignores the other without a word."""
    assert (ROOT / "Snakefile").is_file()
    assert not (ROOT / "workflow" / "Snakefile").exists()


@pytest.mark.skipif(shutil.which("make") is None, reason="make is not installed")
def test_make_help_lists_every_target() -> None:
    targets = re.findall(r"^\.PHONY: (.*)$", (ROOT / "Makefile").read_text("utf-8"), re.MULTILINE)
    out = subprocess.run(["make", "help"], cwd=ROOT, capture_output=True, text=True, check=True)
    listed = {line.split()[0] for line in out.stdout.splitlines() if line.strip()}
    assert set(" ".join(targets).split()) <= listed


SOURCE_PATH = re.compile(r"`([\w/]+/[\w.]+\.(?:py|smk|h|cpp))`")
"""A source file that a page names, from the repository's root or the package's."""

SOURCE_ROOTS = (ROOT, ROOT / "src" / "infopt")

NO_FILES = {"kernels/__init__.py"}
"""Named because they must not exist."""


@pytest.mark.parametrize("page", ["architecture", "extending"])
def test_files_that_the_documentation_names_exist(page: str) -> None:
    """Pins: a module was split, and the map still showed the way to the old one."""
    text = (ROOT / "docs" / f"{page}.md").read_text(encoding="utf-8")
    named = set(SOURCE_PATH.findall(text)) - NO_FILES
    assert named
    missing = [n for n in sorted(named) if not any((b / n).is_file() for b in SOURCE_ROOTS)]
    assert not missing
