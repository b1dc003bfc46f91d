"""RMSNorm with residual in CUDA C++ (``kernels/csrc/cuda``), to compare the Triton kernel with.

No op uses it: it exists so that a machine with nvcc can say what Triton costs or wins. nvcc makes a
library of its own from the source, without torch's headers, so that this works (up to the launch)
on machines without a GPU as well.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import shutil
import subprocess
import tempfile
from pathlib import Path

import torch

from infopt.errors import BackendError
from infopt.ops.cpu.build import source_folder
from infopt.user_cache import cache_dir

FLAGS = ("-std=c++17", "-O3", "--compiler-options", "-fPIC", "-shared")
_TYPES = {torch.float32: 0, torch.float16: 1, torch.bfloat16: 2}


def why_no_nvcc() -> str | None:
    """Return why CUDA C++ cannot be compiled here, or None."""
    return None if shutil.which("nvcc") else "nvcc is not installed"


@functools.cache
def load_library(arch: int) -> ctypes.CDLL:
    """Compile the source for an architecture, once per content, and load it.

    Args:
        arch: Compute capability times ten.

    Raises:
        BackendError: Without nvcc, or with what it said.
    """
    if reason := why_no_nvcc():
        raise BackendError(f"{reason}.", field="nvcc", remedy="Install the CUDA toolkit.")
    source = source_folder() / "cuda" / "rms_norm.cu"
    text = "\0".join((source.read_text("utf-8"), *FLAGS, str(arch), _nvcc_version()))
    key = hashlib.sha256(text.encode()).hexdigest()[:20]
    library = cache_dir() / "kernels" / f"cuda-sm{arch}-{key}" / "librms_norm.so"
    if not library.exists():
        _compile(source, library, arch)
    loaded = ctypes.CDLL(str(library))
    pointer, integer, long = ctypes.c_void_p, ctypes.c_int, ctypes.c_long
    loaded.infopt_add_rms_norm.argtypes = [
        *(integer, pointer, pointer, pointer, pointer, pointer, integer, integer),
        *(long, long, ctypes.c_float, pointer),
    ]
    return loaded


def add_rms_norm(
    x: torch.Tensor, residual: torch.Tensor | None, weight: torch.Tensor, eps: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """Add the residual, then normalise; see :func:`infopt.ops.rms_norm.add_rms_norm`.

    Raises:
        KernelArgumentError: For wrong shapes, types, layouts or devices.
        BackendError: If it cannot be compiled, or CUDA refuses the launch.
    """
    from infopt.kernels.triton_ops.common import refuse
    from infopt.kernels.triton_ops.rms_norm import check_arguments

    check_arguments(x, residual, weight)
    if x.device.type != "cuda":
        refuse("x", x.device, f"must be on a CUDA device, got {x.device}")
    major, minor = torch.cuda.get_device_capability(x.device)
    library = load_library(10 * major + minor)
    if x.shape[1] > library.infopt_rms_norm_max_size():
        refuse("x", x.shape[1], f"has rows of {x.shape[1]}, longer than the kernel takes")
    normed = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    total = x if residual is None else torch.empty_like(normed)
    if normed.numel():
        with torch.cuda.device(x.device):
            code = library.infopt_add_rms_norm(
                _TYPES[x.dtype],
                x.data_ptr(),
                None if residual is None else residual.data_ptr(),
                weight.data_ptr(),
                normed.data_ptr(),
                None if residual is None else total.data_ptr(),
                *x.shape,
                x.stride(0),
                0 if residual is None else residual.stride(0),
                eps,
                torch.cuda.current_stream().cuda_stream,
            )
        if code:
            raise BackendError(f"CUDA refused the launch (error {code}).", value=code)
    return normed, total


def _nvcc_version() -> str:
    return subprocess.run(["nvcc", "--version"], capture_output=True, text=True, check=True).stdout


def _compile(source: Path, library: Path, arch: int) -> None:
    """Compile into a temporary file, which then takes its name in one step."""
    library.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=library.parent) as folder:
        built = Path(folder) / library.name
        result = subprocess.run(
            ["nvcc", *FLAGS, f"-arch=sm_{arch}", str(source), "-o", str(built)],
            capture_output=True,
            text=True,
            check=False,
        )
        if result.returncode:
            raise BackendError(
                f"nvcc failed: {result.stderr.strip()[-500:]}", field="nvcc", value=arch
            )
        built.replace(library)
