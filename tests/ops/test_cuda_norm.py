"""The norm in CUDA C++: compiles, fits, refuses; on a GPU also against the reference."""

from __future__ import annotations

import shutil
import subprocess

import pytest
import torch

from infopt.errors import BackendError
from infopt.ops.cpu.build import source_folder
from infopt.ops.gpu import cuda
from infopt.ops.rms_norm import add_rms_norm

SOURCE = source_folder() / "cuda" / "rms_norm.cu"
needs_nvcc = pytest.mark.skipif(shutil.which("nvcc") is None, reason="nvcc is not installed")


@needs_nvcc
@pytest.mark.parametrize("arch", [80, 90, 100])
def test_compiles_without_spills(tmp_path, arch):
    pytest.importorskip("triton")
    from infopt.kernels.triton_ops.elf import read_needs

    cubin = tmp_path / "rms_norm.cubin"
    options = ["-std=c++17", "-O3", "-cubin", f"-arch=sm_{arch}", "-Werror", "all-warnings"]
    subprocess.run(["nvcc", *options, str(SOURCE), "-o", str(cubin)], check=True)
    needs = read_needs(cubin.read_bytes())
    assert needs.frame_bytes == 0
    assert needs.registers <= 64  # 256 threads: four blocks on a multiprocessor


@needs_nvcc
def test_library_loads_and_is_cached(tmp_path, monkeypatch):
    monkeypatch.setenv("INFOPT_CACHE_DIR", str(tmp_path))
    cuda.load_library.cache_clear()
    assert cuda.load_library(80).infopt_rms_norm_max_size() == 8192
    cuda.load_library.cache_clear()
    monkeypatch.setattr(cuda, "_compile", lambda *_: pytest.fail("compiled twice"))
    assert cuda.load_library(80).infopt_rms_norm_max_size() == 8192
    cuda.load_library.cache_clear()


def test_without_nvcc(monkeypatch):
    monkeypatch.setattr(shutil, "which", lambda _: None)
    cuda.load_library.cache_clear()
    with pytest.raises(BackendError, match="nvcc is not installed"):
        cuda.load_library(80)


def test_cpu_tensors_are_refused():
    pytest.importorskip("triton")
    x = torch.zeros(2, 8)
    with pytest.raises(ValueError, match="CUDA device"):
        cuda.add_rms_norm(x, None, torch.ones(8), 1e-6)


@pytest.mark.gpu
@needs_nvcc
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_equals_reference(dtype):
    for size in (8, 1000, 5000, 8192):
        x, residual = (torch.randn(5, size, device="cuda").to(dtype) for _ in "ab")
        weight = torch.rand(size, device="cuda")
        for added in (None, residual):
            normed, total = cuda.add_rms_norm(x, added, weight, 1e-6)
            expected, expected_total = add_rms_norm(x, added, weight, 1e-6)
            assert torch.equal(total, expected_total)
            bound = 2 * torch.finfo(dtype).eps * expected.abs() + 1e-6
            assert ((normed.float() - expected.float()).abs() <= bound).all()
