"""The engine runs where only torch, triton, transformers, safetensors and numpy are installed.

GPU machines often hold exactly these and no network. So the lower layers may import nothing else
when they are loaded; gguf, tqdm and the like are imported by the functions that need them.
"""

from __future__ import annotations

import ast
import importlib.metadata
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from packaging.requirements import Requirement

SOURCE = Path(__file__).parents[2] / "src" / "infopt"
BASE = ("torch", "triton", "transformers", "safetensors", "numpy")
LOWER_PACKAGES = ("kernels", "ops", "models", "cache", "engine")

FILTER = """
import importlib, importlib.machinery, pkgutil, sys

ALLOWED = {allowed!r}

class OnlyAllowed:
    '''Stands in front of the path finder: other packages look as if they were not installed.'''

    @staticmethod
    def find_spec(name, path=None, target=None):
        # sysconfig's data has a name that depends on the platform.
        if name.partition(".")[0] not in ALLOWED and not name.startswith("_sysconfigdata"):
            return None
        return importlib.machinery.PathFinder.find_spec(name, path, target)

    @staticmethod
    def invalidate_caches():
        importlib.machinery.PathFinder.invalidate_caches()

    find_distributions = importlib.machinery.PathFinder.find_distributions

sys.meta_path[:] = [
    OnlyAllowed if finder is importlib.machinery.PathFinder else finder
    for finder in sys.meta_path
    if getattr(finder, "__name__", "") in ("BuiltinImporter", "FrozenImporter", "PathFinder")
]
for forbidden in {forbidden!r}:
    try:
        importlib.import_module(forbidden)
    except ImportError:
        continue
    raise SystemExit(f"the filter let {{forbidden}} through")

import infopt
names = ["infopt.llm"]
for package in {packages!r}:
    module = importlib.import_module("infopt." + package)
    names += [m.name for m in pkgutil.walk_packages(module.__path__, module.__name__ + ".")]
for name in names:
    importlib.import_module(name)
print(len(names))
"""


def distributions_of(names: tuple[str, ...]) -> set[str]:
    """Return these distributions and all that they require, by canonical name."""
    found: set[str] = set()
    waiting = list(names)
    while waiting:
        name = waiting.pop().lower().replace("_", "-")
        if name in found:
            continue
        try:
            requirements = importlib.metadata.requires(name) or []
        except importlib.metadata.PackageNotFoundError:
            continue  # triton has no wheel for every platform
        found.add(name)
        for text in requirements:
            requirement = Requirement(text)
            if requirement.marker is None or requirement.marker.evaluate({"extra": ""}):
                waiting.append(requirement.name)
    return found


def modules_of(distributions: set[str]) -> set[str]:
    """Return the top-level module names that distributions install."""
    return {
        module
        for module, owners in importlib.metadata.packages_distributions().items()
        if {o.lower().replace("_", "-") for o in owners} & distributions
    }


def test_lower_layers_import_with_the_base_packages_alone() -> None:
    allowed = modules_of(distributions_of(BASE)) | set(sys.stdlib_module_names) | {"infopt"}
    forbidden = [m for m in ("gguf", "pandas", "matplotlib", "snakemake") if m not in allowed]
    assert forbidden, "nothing would be blocked, so the test could not fail"
    code = FILTER.format(allowed=allowed, forbidden=forbidden, packages=LOWER_PACKAGES)
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=300, check=False
    )
    assert result.returncode == 0, result.stderr
    assert int(result.stdout) > len(LOWER_PACKAGES)


def lower_files() -> list[Path]:
    files = [p for name in LOWER_PACKAGES for p in (SOURCE / name).rglob("*.py")]
    return sorted([*files, *SOURCE.glob("llm.py"), *SOURCE.glob("llm/**/*.py")])


def top_level_imports(path: Path) -> Iterator[str]:
    """Yield the modules that a file imports when it is loaded, not those inside functions."""
    waiting: list[ast.AST] = [ast.parse(path.read_text("utf-8"))]
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            continue
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            continue
        if isinstance(node, ast.Import):
            yield from (alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield (node.module or "").partition(".")[0]
        waiting.extend(ast.iter_child_nodes(node))


@pytest.mark.parametrize("path", lower_files(), ids=lambda p: str(p.relative_to(SOURCE)))
def test_top_level_imports_are_base_packages(path: Path) -> None:
    """Packages that transformers happens to need (tqdm, yaml) are not ours to rely on."""
    allowed = {*BASE, "infopt", *sys.stdlib_module_names}
    assert set(top_level_imports(path)) <= allowed
