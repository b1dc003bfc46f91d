"""The README and the other pages say what is there: code runs, commands parse, links lead on."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest
import typer
from typer.core import TyperGroup

from infopt.cli import app

ROOT = Path(__file__).parents[2]
PAGES = [
    *sorted(ROOT.glob("*.md")),
    *sorted((ROOT / "docs").glob("*.md")),
    *sorted((ROOT / "config").glob("*.md")),
    ROOT / "kernels" / "README.md",
]
_FENCE = re.compile(r"^```(\w+)\n(.*?)^```", re.MULTILINE | re.DOTALL)
_PATH = re.compile(r"`((?:src|docs|tests|config|workflow|kernels|notebooks|envs)/[\w./-]*\w)`")
_LINK = re.compile(r"\]\(([^)#\s]+)(?:#[^)]*)?\)")


def blocks(path: Path, *languages: str) -> list[str]:
    return [
        text for language, text in _FENCE.findall(path.read_text("utf-8")) if language in languages
    ]


def command_lines() -> Iterator[tuple[str, list[str]]]:
    """Yield (page, words) for each line of a shell block, comments taken off."""
    for path in PAGES:
        for block in blocks(path, "bash", "sh", "console"):
            for line in block.replace("\\\n", " ").splitlines():
                words = shlex.split(line, comments=True)
                if words:
                    yield path.name, words


@pytest.mark.parametrize("path", PAGES, ids=lambda p: p.name)
def test_links_lead_to_files(path: Path) -> None:
    links = [link for link in _LINK.findall(path.read_text("utf-8")) if "://" not in link]
    missing = [link for link in links if not (path.parent / link).exists()]
    assert not missing


def test_infopt_commands_parse() -> None:
    """A renamed option must not survive in the documentation."""
    group = typer.main.get_command(app)
    assert isinstance(group, TyperGroup)
    lines = [words[1:] for _, words in command_lines() if words[0] == "infopt"]
    assert len(lines) >= 5
    for words in lines:
        command, context = group, group.make_context("infopt", list(words), resilient_parsing=False)
        name, command, rest = group.resolve_command(context, list(words))
        assert command is not None
        with command.make_context(name, rest, parent=context):
            pass


def test_make_targets_exist() -> None:
    makefile = (ROOT / "Makefile").read_text("utf-8")
    targets = set(re.findall(r"^([a-z-]+):", makefile, re.MULTILINE))
    used = [w for _, words in command_lines() if words[0] == "make" for w in words[1:]]
    named = {word for word in used if "=" not in word}
    assert {"run", "test"} <= named <= targets
    variables = set(re.findall(r"^([A-Z_]+) \?=", makefile, re.MULTILINE))
    assert {word.partition("=")[0] for word in used if "=" in word} <= variables


def test_python_blocks_compile() -> None:
    for path in PAGES:
        for block in blocks(path, "python"):
            compile(block, str(path), "exec")


@pytest.mark.usefixtures("smollm2_path")
def test_readme_python_runs(capsys: pytest.CaptureFixture[str]) -> None:
    code = blocks(ROOT / "README.md", "python")
    # What needs a server is run against one, by tests/serve/test_documented_clients.py.
    code = [block for block in code if "base_url" not in block]
    assert code
    namespace: dict[str, object] = {}
    for block in code:
        exec(compile(block, "README.md", "exec"), namespace)
    assert "Paris" in capsys.readouterr().out


def test_readme_shows_the_two_commands_first() -> None:
    first = blocks(ROOT / "README.md", "bash")[0]
    assert [line.split("#")[0].split() for line in first.splitlines()] == [
        ["make", "run"],
        ["make", "test"],
    ]


def test_pages_name_only_files_that_exist() -> None:
    """Paths in backticks that look like files of the repository."""
    forbidden = "kernels/__init__.py"  # named because it must not exist
    for path in PAGES:
        for name in set(_PATH.findall(path.read_text("utf-8"))) - {forbidden}:
            assert (ROOT / name).exists(), f"{path.name}: {name}"
