"""Choosing an instruction set, compiling once, and what happens without a compiler."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
import torch

from infopt.errors import BackendError, ConfigError
from infopt.ops import OpSet, resolve_ops
from infopt.ops.cpu import build, isa
from infopt.ops.dispatch import OpTarget

# A module without torch's headers, so that it compiles in a second.
SOURCE = """
#include <Python.h>
#define JOIN(a, b) a##b
#define INIT(name) JOIN(PyInit_, name)
static PyModuleDef module = {PyModuleDef_HEAD_INIT, "m", "", -1, nullptr};
extern "C" __attribute__((visibility("default"))) PyObject* INIT(TORCH_EXTENSION_NAME)(void) {
  return PyModule_Create(&module);
}
"""


@pytest.fixture
def fake_sources(tmp_path, monkeypatch):
    """Small sources and an empty cache instead of the real ones."""
    (tmp_path / "csrc" / "cpu").mkdir(parents=True)
    (tmp_path / "csrc" / "include").mkdir()
    (tmp_path / "csrc" / "cpu" / "module.cpp").write_text(SOURCE)
    monkeypatch.setattr(build, "source_folder", lambda: tmp_path / "csrc")
    monkeypatch.setenv("INFOPT_CACHE_DIR", str(tmp_path / "cache"))
    for cached in (build.load_extension, build._why_not_load):
        cached.cache_clear()
    yield tmp_path
    for cached in (build.load_extension, build._why_not_load):
        cached.cache_clear()


def test_best_instruction_set_is_chosen():
    avx512 = isa.AVX512.features
    assert isa.choose_isa(frozenset(), None) is isa.PORTABLE
    assert isa.choose_isa(isa.AVX2.features | {"sse"}, None) is isa.AVX2
    assert isa.choose_isa(avx512 | {"avx512_bf16"}, None) is isa.AVX512
    assert isa.choose_isa(avx512 | isa.AMX.features, None) is isa.AMX
    assert isa.choose_isa(isa.AMX.features, "avx2") is isa.AVX2


def test_wrong_instruction_set_is_named():
    with pytest.raises(ConfigError, match="avx512"):
        isa.choose_isa(isa.AMX.features, "avx-512")
    with pytest.raises(ConfigError, match="avx512f") as caught:
        isa.choose_isa(isa.AVX2.features, "avx512")
    assert caught.value.field == "INFOPT_CPU_ISA"


def test_compiles_once_and_is_cached(fake_sources, capfd):
    first = build.load_extension(isa.PORTABLE)
    assert "compiling the CPU kernels for portable" in capfd.readouterr().err
    build.load_extension.cache_clear()
    assert build.load_extension(isa.PORTABLE).__file__ == first.__file__
    assert capfd.readouterr().err == ""


def test_changed_source_is_compiled_again(fake_sources):
    first = build.load_extension(isa.PORTABLE).__file__
    (fake_sources / "csrc" / "include" / "new.h").write_text("// changed")
    build.load_extension.cache_clear()
    assert build.load_extension(isa.PORTABLE).__file__ != first


def test_further_flags_give_a_library_of_their_own(fake_sources, monkeypatch):
    """A sanitized build must not be taken for the ordinary one, nor the other way round."""
    plain = build._key(isa.PORTABLE)
    monkeypatch.setenv(build.FLAGS_VARIABLE, "-DFURTHER='a b'")
    assert build._extra_flags() == ["-DFURTHER=a b"]
    assert build._key(isa.PORTABLE) != plain


def test_lock_of_a_killed_build_does_not_block(fake_sources):
    """Pins a fault of torch's loader: a build that was killed left a lock that all later ones
    waited for, forever."""
    folder = fake_sources / "cache" / "kernels" / f"portable-{build._key(isa.PORTABLE)}"
    folder.mkdir(parents=True)
    (folder / "lock").touch()
    (folder / "build.lock").touch()
    assert build.load_extension(isa.PORTABLE) is not None


def test_processes_that_start_together_compile_once(fake_sources):
    script = (
        "import sys, pathlib\n"
        "from infopt.ops.cpu import build, isa\n"
        "build.source_folder = lambda: pathlib.Path(sys.argv[1])\n"
        "build.load_extension(isa.PORTABLE)\n"
    )
    command = [sys.executable, "-c", script, str(fake_sources / "csrc")]
    processes = [
        subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=os.environ.copy())
        for _ in range(2)
    ]
    errors = [process.communicate(timeout=300)[1] for process in processes]
    assert [process.returncode for process in processes] == [0, 0], errors
    assert sum("compiling" in error for error in errors) == 1


def test_failed_compilation_is_a_reason(fake_sources):
    (fake_sources / "csrc" / "cpu" / "module.cpp").write_text("this is not C++")
    with pytest.raises(BackendError, match="did not compile") as caught:
        build.load_extension(isa.PORTABLE)
    log = next((fake_sources / "cache").rglob("build.log"))
    assert str(log) in str(caught.value)
    assert "this is not C++" in log.read_text()


def _resolve(backend: str) -> OpSet:
    return resolve_ops(backend, torch.device("cpu"), torch.float32)


def test_without_a_compiler_the_reference_runs(fake_sources, monkeypatch):
    monkeypatch.setenv("CXX", "no-such-compiler")
    choice = _resolve("auto").choices["attention"]
    assert choice.backend == "reference"
    assert "no C++ compiler (no-such-compiler not found)" in choice.reason
    with pytest.raises(BackendError, match="no-such-compiler"):
        _resolve("cpu")


def test_reference_compiles_nothing(fake_sources):
    assert {choice.backend for choice in _resolve("reference").choices.values()} == {"reference"}
    assert not (fake_sources / "cache").exists()


def test_targets_the_kernels_cannot_run_on():
    from infopt.ops.cpu import why_not

    assert why_not(OpTarget(torch.device("cuda"), torch.float32)) == "a CPU path"
    reason = why_not(OpTarget(torch.device("cpu"), torch.float16))
    assert reason is not None
    assert "float16" in reason


def test_a_cache_that_cannot_be_written_is_a_reason(fake_sources, monkeypatch):
    """Pins: with a read-only home folder nothing could be loaded at all."""
    (fake_sources / "file").write_text("")
    monkeypatch.setenv("INFOPT_CACHE_DIR", str(fake_sources / "file" / "cache"))
    choice = _resolve("auto").choices["attention"]
    assert choice.backend == "reference"
    assert "the cache cannot be written" in choice.reason
    with pytest.raises(BackendError, match="INFOPT_CACHE_DIR"):
        build.load_extension(isa.PORTABLE)


@pytest.mark.parametrize("name", ["", " "])
def test_an_empty_name_of_a_compiler_is_none(fake_sources, monkeypatch, name):
    """Pins: CXX set to nothing was an IndexError."""
    monkeypatch.setenv("CXX", name)
    assert build._compiler() == ["c++"]
