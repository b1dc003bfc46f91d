"""The sdist and the wheel hold everything, kernels above all.

``src/infopt/kernels`` is a link to ``kernels/``. A build that walks the root once marks the folder
as seen under its first name and leaves the link out: the wheel of such an sdist installs, imports,
and has no kernels.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
import venv
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
KERNEL_FILES = sorted(
    p.relative_to(ROOT).as_posix()
    for p in (ROOT / "kernels").rglob("*")
    if p.is_file() and "__pycache__" not in p.parts
)


def run(*command: str, cwd: Path, env: dict[str, str] | None = None) -> str:
    result = subprocess.run(
        command, cwd=cwd, capture_output=True, text=True, timeout=300, check=False, env=env
    )
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout


def build(what: str, source: Path, target: Path) -> Path:
    """Build an sdist or a wheel with the installed hatchling; nothing is downloaded."""
    run(sys.executable, "-m", "build", "--no-isolation", f"--{what}", "-o", str(target), cwd=source)
    (archive,) = target.iterdir()
    return archive


@pytest.fixture(scope="module")
def sdist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build("sdist", ROOT, tmp_path_factory.mktemp("sdist"))


@pytest.fixture(scope="module")
def wheel(sdist: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the wheel built from the unpacked sdist, as an installer from source does it."""
    unpacked = tmp_path_factory.mktemp("unpacked")
    with tarfile.open(sdist) as archive:
        # Python 3.11 has the filter from 3.11.4 on.
        safely = {"filter": "data"} if hasattr(tarfile, "data_filter") else {}
        archive.extractall(unpacked, **safely)
    (source,) = unpacked.iterdir()
    return build("wheel", source, tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="module")
def installed_python(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the Python of a new environment that holds the wheel and nothing of the checkout."""
    folder = tmp_path_factory.mktemp("venv")
    venv.create(folder, with_pip=False)
    python = folder / "bin" / "python"
    target = run(
        str(python), "-c", "import sysconfig; print(sysconfig.get_path('purelib'))", cwd=folder
    )
    pip = [sys.executable, "-m", "pip", "install", "--no-deps", "--no-index", "--quiet"]
    run(*pip, "--target", target.strip(), str(wheel), cwd=folder)
    return python


def test_kernels_are_not_empty() -> None:
    assert KERNEL_FILES


def test_sdist_holds_what_a_user_needs(sdist: Path) -> None:
    with tarfile.open(sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    needed = {"Snakefile", "Makefile", "LICENSE", "README.md", "pyproject.toml"}
    needed |= {"config/config.yaml", "envs/constraints-cpu.txt", "src/infopt/__init__.py"}
    needed |= set(KERNEL_FILES) | {f"src/infopt/{name}" for name in KERNEL_FILES}
    assert needed <= names


def test_wheel_of_the_sdist_holds_kernels_and_data(wheel: Path) -> None:
    names = set(zipfile.ZipFile(wheel).namelist())
    assert {f"infopt/{name}" for name in KERNEL_FILES} <= names
    data = [
        p.relative_to(ROOT / "src").as_posix()
        for p in (ROOT / "src" / "infopt").rglob("*")
        if p.suffix in {".json", ".yaml", ".py"}
    ]
    assert data
    assert set(data) <= names


def test_wheel_holds_nothing_else(wheel: Path) -> None:
    roots = {name.partition("/")[0] for name in zipfile.ZipFile(wheel).namelist()}
    assert roots == {"infopt", next(r for r in roots if r.endswith(".dist-info"))}
    assert wheel.name.endswith("-py3-none-any.whl")


def test_installed_wheel_finds_its_kernels(installed_python: Path) -> None:
    code = (
        "import importlib, pathlib, infopt.kernels as k; "
        "import infopt; folder = pathlib.Path(k.__path__[0]); "
        "assert folder.parent == pathlib.Path(infopt.__file__).parent, folder; "
        "assert not folder.is_symlink(); "
        "importlib.import_module('infopt.kernels.triton_ops'); "
        "print(sum(1 for p in folder.rglob('*') if p.is_file() and p.suffix != '.pyc'))"
    )
    out = run(str(installed_python), "-c", code, cwd=installed_python.parent)
    assert int(out) == len(KERNEL_FILES)


def test_installed_wheel_has_the_command(installed_python: Path) -> None:
    """The command of the wheel, with the libraries of this environment on the path."""
    libraries = [p for p in sys.path if p.endswith("site-packages")]
    env = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    script = "import sys; sys.path += sys.argv[1:]; sys.argv = ['infopt', '--version']; "
    script += "from infopt.cli import app; import infopt; print(infopt.__file__); app()"
    out = run(str(installed_python), "-c", script, *libraries, cwd=installed_python.parent, env=env)
    assert str(installed_python.parents[1]) in out
    assert out.splitlines()[-1].startswith("infopt ")
