"""Identity of the code behind a result, independent of commits, comments and docstrings.

Snakemake reruns a job when its rule or script changes, but it does not see the package those call.
So each rule carries this identity among its ``params``. Two choices follow from what a rerun costs:

* Not the git commit: every commit, of a README even, would measure everything again.
* Not the file contents but the syntax trees without docstrings: a reworded comment changes no
  number. (C++, CUDA and schema files count byte by byte.)

Code is divided by what it can change: ``measure`` decides numbers, ``select`` what is chosen from
them, ``present`` how they are shown. A job carries the identity of its own part; the parts after it
rerun through their inputs.
"""

from __future__ import annotations

import ast
import functools
import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import Literal, get_args

import infopt
from infopt.errors import ConfigError, nearest

Part = Literal["measure", "select", "present"]

_PACKAGE = Path(infopt.__file__).parent
_SELECT = (
    "select",
    "energy/break_even.py",
    "energy/cost.py",
    "energy/keep_warm.py",
    "energy/prices.py",
    "experiments/choose.py",
    "experiments/choose_again.py",
    "experiments/costs.py",
    "experiments/power/collect.py",
    "experiments/recommend.py",
    "experiments/tables.py",
    "experiments/yaml_files.py",
)
_PRESENT = (
    "plotting",
    "notebooks.py",
    "experiments/findings",
    "experiments/figures.py",
    "experiments/summary.py",
)
_UNRELATED = ("cli", "doctor", "doctor.py", "errors.py", "experiments/config.py", "results/html.py")
"""Code that changes no number; configuration acts through the values it gives to a job."""


@functools.cache
def source_identity(part: Part) -> str:
    """Return ``<version>+<hash of the code of that part>``.

    Raises:
        ConfigError: There is no such part.
    """
    if part not in get_args(Part):
        raise ConfigError(
            f"There is no part of the code called {part!r}.{nearest(part, get_args(Part))}",
            field="part",
            value=part,
        )
    digest = hashlib.sha256()
    for path in sorted(source_files(part)):
        digest.update(str(path.relative_to(_PACKAGE)).encode())
        digest.update(_content(path))
    return f"{infopt.__version__}+{digest.hexdigest()[:12]}"


def source_files(part: Part) -> Iterator[Path]:
    """Yield the files of a part, kernels included."""
    # The folder of kernels is a link, which rglob does not enter.
    for root in (_PACKAGE, _PACKAGE / "kernels"):
        for path in root.rglob("*"):
            relative = path.relative_to(_PACKAGE)
            if path.suffix in _SUFFIXES and part_of(relative) == part:
                yield path


_SUFFIXES = (".py", ".json", ".cpp", ".cc", ".h", ".hpp", ".cu", ".cuh")


def part_of(relative: Path) -> Part | None:
    """Return the part that a file of the package belongs to, or None for none of them."""
    name = relative.as_posix()
    for part, prefixes in (("select", _SELECT), ("present", _PRESENT), (None, _UNRELATED)):
        if any(name == p or name.startswith(f"{p}/") for p in prefixes):
            return part  # type: ignore[return-value]
    return "measure"


def _content(path: Path) -> bytes:
    if path.suffix != ".py":
        return path.read_bytes()
    tree = ast.parse(path.read_text("utf-8"))
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            _drop_docstring(node)
    return ast.dump(tree).encode()


def _drop_docstring(
    node: ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef,
) -> None:
    if ast.get_docstring(node, clean=False) is not None:
        node.body = node.body[1:]
