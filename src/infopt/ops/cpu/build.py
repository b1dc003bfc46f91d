"""Compiles the C++ kernels on first use and loads them.

The library lies in the user's cache folder under a key made of everything that changes it: the
sources, the compiler flags (hence the instruction set), the compiler, torch and Python. Processes
that start together wait for the one that compiles; a finished library appears in one step.
"""

from __future__ import annotations

import functools
import hashlib
import importlib
import importlib.util
import os
import shlex
import shutil
import subprocess
import sys
import sysconfig
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType

import torch

from infopt.errors import BackendError, ConfigError
from infopt.ops.cpu.isa import InstructionSet, current_isa
from infopt.user_cache import CACHE_VARIABLE, cache_dir

COMMON_FLAGS = (
    "-O3",
    "-fopenmp",
    "-fvisibility=hidden",
    "-ffp-contract=off",  # the source says where a multiply-add is fused: bits follow from it
    "-fno-math-errno",
    "-Wall",
    "-Wno-uninitialized",  # GCC 12 warns about its own intrinsics
    "-Wno-unknown-pragmas",
)

FLAGS_VARIABLE = "INFOPT_CPU_FLAGS"
"""Environment variable with further flags for compiler and linker, for sanitizers and profiling."""


def extension() -> ModuleType:
    """Return the compiled kernels for this processor, compiling them if needed.

    Raises:
        BackendError: Says why they cannot be had.
    """
    return load_extension(current_isa())


def why_no_extension() -> str | None:
    """Return why the kernels cannot be had on this machine, or None. May compile them."""
    return _why_not_load(current_isa())


@functools.cache  # a build that failed is not tried again for the next op
def _why_not_load(isa: InstructionSet) -> str | None:
    try:
        load_extension(isa)
    except (BackendError, ConfigError) as error:  # no compiler, or no place for the result
        return error.message.rstrip(".")
    return None


@functools.cache
def load_extension(isa: InstructionSet) -> ModuleType:
    """Return the kernels compiled for one instruction set.

    Raises:
        BackendError: If there is no compiler, compilation fails, or its result cannot be kept.
        ConfigError: If the user has no folder for it.
    """
    _check_tools()
    name = f"infopt_cpu_{isa.name}"
    folder = cache_dir() / "kernels" / f"{isa.name}-{_key(isa)}"
    library = folder / f"{name}{sysconfig.get_config_var('EXT_SUFFIX')}"
    if not library.exists():
        try:
            folder.mkdir(parents=True, exist_ok=True)
            with _lock(folder / "build.lock"):
                if not library.exists():
                    _compile(name, isa, folder, library)
        except OSError as error:
            _refuse(f"the cache cannot be written ({error})", f"Set {CACHE_VARIABLE}.")
    return _import(name, library)


def source_folder() -> Path:
    """Return ``kernels/csrc``, in the checkout or the installed package."""
    return Path(next(iter(importlib.import_module("infopt.kernels").__path__))) / "csrc"


def _check_tools() -> None:
    if os.name != "posix":
        _refuse("the kernels are compiled on Linux and macOS only", "Use backend='reference'.")
    compiler = _compiler()[0]
    if shutil.which(compiler) is None:
        _refuse(f"no C++ compiler ({compiler} not found)", "Install g++ or clang++, or set CXX.")
    if _ninja_folder() is None:
        _refuse("ninja is not installed", "Run `pip install ninja`.")
    if importlib.util.find_spec("setuptools") is None:
        _refuse("setuptools is not installed", "Run `pip install setuptools`.")


def _refuse(reason: str, remedy: str) -> None:
    raise BackendError(f"{reason}.", field="backend", value="cpu", remedy=remedy)


def _compiler() -> list[str]:
    return shlex.split(os.environ.get("CXX", "")) or ["c++"]


def _extra_flags() -> list[str]:
    return shlex.split(os.environ.get(FLAGS_VARIABLE, ""))


def _ninja_folder() -> Path | None:
    """Return where ninja is: next to this Python (which need not be on PATH) or on PATH."""
    found = shutil.which("ninja", path=str(Path(sys.executable).parent)) or shutil.which("ninja")
    return Path(found).parent if found else None


def _sources() -> list[Path]:
    return sorted((source_folder() / "cpu").glob("*.cpp"))


def _key(isa: InstructionSet) -> str:
    digest = hashlib.sha256()
    headers = sorted((source_folder() / "include").glob("*.h"))
    for path in [*headers, *_sources()]:
        digest.update(path.name.encode() + b"\0" + path.read_bytes() + b"\0")
    version = subprocess.run(
        [*_compiler(), "--version"], capture_output=True, text=True, check=False
    ).stdout
    parts = (*COMMON_FLAGS, *isa.flags, *_extra_flags(), version, torch.__version__, sys.version)
    digest.update("\0".join(parts).encode())
    return digest.hexdigest()[:20]


@contextmanager
def _lock(path: Path) -> Iterator[None]:
    """Hold an exclusive lock that the system drops when the process ends, however it ends."""
    import fcntl

    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _compile(name: str, isa: InstructionSet, folder: Path, library: Path) -> None:
    from torch.utils import cpp_extension

    (folder / "lock").unlink(missing_ok=True)  # torch's own lock outlives a killed process
    # It would call a second build in one process, say after a source changed, by another name.
    cpp_extension.JIT_EXTENSION_VERSIONER.entries.pop(name, None)
    print(
        f"infopt: compiling the CPU kernels for {isa.name} (once, about half a minute) ...",
        file=sys.stderr,
        flush=True,
    )
    started = time.monotonic()
    try:
        with _path_with_ninja():
            cpp_extension.load(
                name,
                [str(path) for path in _sources()],
                extra_cflags=[*COMMON_FLAGS, *isa.flags, *_extra_flags()],
                extra_ldflags=["-fopenmp", *_extra_flags()],
                extra_include_paths=[str(source_folder() / "include")],
                build_directory=str(folder),
            )
    except (RuntimeError, subprocess.CalledProcessError, OSError) as error:
        log = folder / "build.log"
        log.write_text(str(error), encoding="utf-8")
        _refuse(f"the CPU kernels did not compile (see {log})", "Use backend='reference'.")
    (folder / f"{name}.so").replace(library)
    for left_over in folder.glob("*.o"):
        left_over.unlink()
    seconds = time.monotonic() - started
    print(f"infopt: CPU kernels compiled in {seconds:.0f} s", file=sys.stderr, flush=True)


@contextmanager
def _path_with_ninja() -> Iterator[None]:
    path = os.environ.get("PATH", "")
    os.environ["PATH"] = f"{_ninja_folder()}{os.pathsep}{path}"
    try:
        yield
    finally:
        os.environ["PATH"] = path


def _import(name: str, library: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, library)
    if spec is None or spec.loader is None:
        raise ImportError(f"{library} is not an extension module")
    module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except ImportError as error:
        raise BackendError(
            f"the compiled CPU kernels do not load ({error}).",
            field="backend",
            value="cpu",
            remedy=f"Delete {library.parent} and try again.",
        ) from error
    return module
