"""Imports point one way, and importing a module does nothing.

A cycle or an upward import is cheap to add and expensive to remove, and work at import time (a
download, a device query, logging set-up) hits everyone who only wanted a name.
"""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[2] / "src" / "infopt"

LAYERS: tuple[tuple[str, ...], ...] = (
    (
        "errors",
        "config",
        "registry",
        "sampling_params",
        "outputs",
        "hardware",
        "machine_rates",
        "results",
        "corpus",
        "schemas",
        "user_cache",
        "yaml_input",
    ),
    ("kernels",),
    ("ops",),
    ("models", "cache"),
    ("engine",),
    ("quantization", "speculative", "moe", "structured"),
    ("llm",),
    ("bench", "evals", "energy", "plotting", "notebooks"),
    ("select",),
    ("experiments", "serve", "training"),
    ("cli", "doctor", "doctor_model"),
)
"""Lowest first. A package imports from lower
layers, from itself, and never from a neighbour (except below); modules of the first layer are plain
data and may use each other."""

NEIGHBOURS = {
    ("cache", "models"),
    ("evals", "bench"),
    ("bench", "energy"),
    ("cli", "doctor"),
    ("cli", "doctor_model"),
    ("doctor_model", "doctor"),
}
"""(importer, imported) in one layer that are meant."""

LAYER_OF = {name: level for level, names in enumerate(LAYERS) for name in names}


def source_files() -> list[Path]:
    return sorted(p for p in SOURCE.rglob("*.py") if p.parent.name != "__pycache__")


def package_of(path: Path) -> str:
    """Return the first name below infopt: "engine" for infopt/engine/scheduler.py."""
    return path.relative_to(SOURCE).with_suffix("").parts[0]


def imported_packages(path: Path) -> Iterator[tuple[str, int]]:
    """Yield (package below infopt, line number) for every import in a file, lazy ones too."""
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno}: relative import"
            module = node.module or ""
            # `from infopt import results` names a package in its list
            names = [f"infopt.{a.name}" for a in node.names] if module == "infopt" else [module]
        else:
            continue
        for name in names:
            parts = name.split(".")
            if parts[0] == "infopt" and len(parts) > 1:
                yield parts[1], node.lineno


def is_allowed(importer: str, imported: str) -> bool:
    if importer == imported or (importer, imported) in NEIGHBOURS:
        return True
    if LAYER_OF[importer] == LAYER_OF[imported] == 0:
        return True
    return LAYER_OF[imported] < LAYER_OF[importer]


def test_every_package_has_a_layer() -> None:
    packages = {package_of(p) for p in source_files()} - {"__init__", "__main__"}
    assert packages <= set(LAYER_OF)


@pytest.mark.parametrize("path", source_files(), ids=lambda p: str(p.relative_to(SOURCE)))
def test_imports_point_down(path: Path) -> None:
    importer = package_of(path)
    if importer == "__init__":  # the lazy public names; it imports nothing until asked
        return
    public = {"LLM": "llm", "EngineConfig": "config", "SamplingParams": "sampling_params"}
    public |= {"InfoptError": "errors", "RequestOutput": "outputs", "load_results": "results"}
    for imported, line in imported_packages(path):
        name = public.get(imported, imported)
        if name == "__version__":
            continue
        assert is_allowed(importer, name), f"{path}:{line}: {importer} must not import {name}"


def test_the_rule_can_fail() -> None:
    assert not is_allowed("ops", "engine")
    assert not is_allowed("models", "cache")
    assert not is_allowed("errors", "llm")
    assert is_allowed("engine", "cache")


AUDIT = """
import importlib, logging, pkgutil, sys
HEAVY = {heavy!r}
for name in HEAVY:
    try:
        importlib.import_module(name)
    except ImportError:
        pass

log, active = [], False
WATCHED = ("socket.connect", "socket.getaddrinfo", "subprocess.Popen", "os.system", "os.mkdir",
           "os.remove", "os.rename")

def hook(event, args):
    if not active:
        return
    if event in WATCHED:
        log.append((event, str(args[:2])))
    if event == "open" and isinstance(args[1], str) and set(args[1]) & set("wax+"):
        log.append((event, str(args[:2])))

sys.addaudithook(hook)
sys.dont_write_bytecode = True
import infopt
names = ["infopt"] + [m.name for m in pkgutil.walk_packages(infopt.__path__, "infopt.")]
handlers = list(logging.getLogger().handlers)
active = True
for name in names:
    if name.rpartition(".")[2] != "__main__":
        importlib.import_module(name)
active = False
import torch
assert not log, log
assert logging.getLogger().handlers == handlers, "logging was configured"
assert not torch.cuda.is_initialized(), "a device was touched"
print(len(names))
"""


def third_party_imports() -> list[str]:
    """Return the top-level names of all other packages that the source imports anywhere."""
    found = set()
    for path in source_files():
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.Import):
                found |= {alias.name for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module:
                found.add(node.module)
    return sorted(n for n in found if not n.startswith("infopt"))


def test_importing_every_module_has_no_side_effect() -> None:
    """No file is written, nothing is run, connected to or configured by an import."""
    code = AUDIT.format(heavy=third_party_imports())
    result = run_python(code)
    assert result.returncode == 0, result.stderr
    assert int(result.stdout) >= len(source_files()) / 2


def test_the_command_line_starts_without_heavy_libraries() -> None:
    """``infopt --help`` must not wait for torch, transformers, pandas or matplotlib."""
    code = (
        "import sys, infopt, infopt.cli; "
        "print(sorted({'torch', 'transformers', 'pandas', 'numpy', 'matplotlib', 'snakemake'}"
        " & set(sys.modules)))"
    )
    result = run_python(code)
    assert result.returncode == 0, result.stderr
    assert result.stdout.strip() == "[]"


def run_python(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
        env=os.environ | {"PYTHONWARNINGS": "ignore"},
    )
