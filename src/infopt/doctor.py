"""What this machine can run, what is missing, and how to get it.

>>> from infopt.doctor import examine
>>> for section in examine():
...     for check in section.checks:
...         print(section.title, check.name, check.status, check.detail)

Nothing is downloaded. The CPU kernels are compiled if they have not been yet, since only that shows
whether they can be.
"""

from __future__ import annotations

import dataclasses
import importlib.metadata
import importlib.util
import os
import platform
import shutil
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

Status = Literal["ok", "info", "warning", "missing"]


@dataclass(frozen=True, slots=True)
class Check:
    """One thing that was looked at.

    Attributes:
        name: What.
        status: ``ok``; ``info`` is a fact; ``missing`` is optional and absent; ``warning`` changes
            results or speed.
        detail: What was found.
        remedy: How to get it, where it is missing.
    """

    name: str
    status: Status
    detail: str
    remedy: str | None = None


@dataclass(frozen=True, slots=True)
class Section:
    """Checks under one heading."""

    title: str
    checks: list[Check]


@dataclass(frozen=True, slots=True)
class OptionalPackage:
    """A package that infopt uses where it is installed.

    Attributes:
        module: Import name.
        distribution: Name on the package index.
        purpose: What it makes possible.
        remedy: How to get it.
    """

    module: str
    distribution: str
    purpose: str
    remedy: str


OPTIONAL_PACKAGES = (
    OptionalPackage("triton", "triton", "GPU kernels", "pip install 'triton>=3.6' (Linux)"),
    OptionalPackage(
        "flash_attn",
        "flash-attn",
        "attention on CUDA",
        "pip install flash-attn --no-build-isolation (needs CUDA and nvcc)",
    ),
    OptionalPackage(
        "bitsandbytes",
        "bitsandbytes",
        "8-bit and 4-bit weights on CUDA",
        "pip install bitsandbytes",
    ),
    OptionalPackage("zeus", "zeus", "energy counters of CPUs", "pip install 'infopt[energy]'"),
    OptionalPackage(
        "jupyterlab", "jupyterlab", "notebooks in a browser", "pip install 'infopt[jupyter]'"
    ),
)


def examine(*, self_test: bool = True) -> list[Section]:
    """Look at everything.

    Args:
        self_test: Also multiply for a few seconds to see whether batch invariance holds.
    """
    sections = [
        Section("System", list(_system())),
        Section("GPU", list(_gpu())),
        Section("Backends", list(_backends())),
        Section("Energy", list(_energy())),
        Section("Compilers", list(_compilers())),
        Section("Optional packages", [_package(p) for p in OPTIONAL_PACKAGES]),
        Section("Files", list(_files())),
        Section("Models", list(_models())),
    ]
    if self_test:
        sections.append(Section("Self-test", list(_invariance())))
    return sections


def to_dict(sections: list[Section]) -> dict[str, Any]:
    """Return plain data: heading -> list of checks."""
    return {s.title: [dataclasses.asdict(c) for c in s.checks] for s in sections}


def _version(distribution: str) -> str | None:
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return None


def _system() -> Iterator[Check]:
    from infopt import __version__, hardware

    machine = hardware.fingerprint()
    features = ", ".join(machine["cpu_features"]) or "no vector extensions known to infopt"
    yield Check("infopt", "info", __version__)
    yield Check("Python", "info", f"{platform.python_version()} ({sys.executable})")
    yield Check("platform", "info", platform.platform())
    yield Check("processor", "info", f"{machine['cpu_model']}, {machine['num_cores']} usable cores")
    yield Check("instructions", "info", features)
    yield Check("memory", "info", f"{machine['ram_gib']} GiB")
    for name in ("torch", "transformers", "snakemake", "papermill"):
        yield Check(name, "info", _version(name) or "not installed")


def _package(package: OptionalPackage) -> Check:
    version = _version(package.distribution)
    if importlib.util.find_spec(package.module) is None:
        return Check(
            package.distribution, "missing", f"not installed ({package.purpose})", package.remedy
        )
    return Check(package.distribution, "ok", f"{version or 'unknown version'} ({package.purpose})")


def _compilers() -> Iterator[Check]:
    yield _program(
        "C++ compiler",
        [os.environ.get("CXX", ""), "c++", "g++", "clang++"],
        "compiles CPU kernels on first use",
        "apt-get install g++ (Debian, Ubuntu)",
    )
    yield _program("nvcc", ["nvcc"], "compiles CUDA kernels", "install the CUDA toolkit")


def _program(name: str, candidates: list[str], purpose: str, remedy: str) -> Check:
    for candidate in filter(None, candidates):
        if path := shutil.which(candidate):
            return Check(name, "ok", f"{path} ({purpose})")
    return Check(name, "missing", f"not found ({purpose})", remedy)


def _gpu() -> Iterator[Check]:
    import torch

    if not torch.cuda.is_available():
        built = torch.version.cuda
        why = "no visible device" if built else "this torch is a CPU build"
        yield Check("CUDA", "info", f"not available: {why}; everything runs on the CPU")
        return
    for index in range(torch.cuda.device_count()):
        properties = torch.cuda.get_device_properties(index)
        memory = f"{properties.total_memory / 2**30:.0f} GiB"
        yield Check(f"cuda:{index}", "ok", f"{properties.name}, {memory}")


def _backends() -> Iterator[Check]:
    import torch

    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    for dtype in (torch.float32, torch.bfloat16):
        for op, (backend, refused) in choose_backends(device, dtype).items():
            name = f"{op} ({str(dtype).removeprefix('torch.')})"
            yield Check(name, "ok", f"{backend}: {'; '.join(refused) or 'preferred'}")
    yield from _gpu_kernels(device)


def _gpu_kernels(device: Any) -> Iterator[Check]:
    """Say why the kernels for GPUs do not run, also where a CPU's come first."""
    import torch

    from infopt.ops import gpu
    from infopt.ops.dispatch import OpTarget

    reason = gpu.why_not(OpTarget(device, torch.bfloat16))
    yield Check(
        "Triton kernels", "info" if reason else "ok", f"not used: {reason}" if reason else "run"
    )
    # Its page size is a choice of the configuration, so the smallest that will do is assumed.
    target = OpTarget(device, torch.bfloat16, block_size=gpu.FLASH_PAGE_TOKENS)
    reason = gpu.why_not_flash(target)
    detail = f"not used: {reason}" if reason else f"with block_size {gpu.FLASH_PAGE_TOKENS}"
    yield Check("flash-attn", "info" if reason else "ok", detail)


def choose_backends(device: Any, dtype: Any) -> dict[str, tuple[str, list[str]]]:
    """Return, per op, the backend that ``auto`` takes and why each faster one is not taken.

    What `resolve_ops` decides, without its loading of the ops and with the reasons apart.

    Args:
        device: A ``torch.device``.
        dtype: A ``torch.dtype``.
    """
    from infopt.ops.dispatch import OpTarget, implementations

    target = OpTarget(device, dtype)
    chosen: dict[str, tuple[str, list[str]]] = {}
    for op, candidates in implementations().items():
        refused = []
        for candidate in candidates:
            why_not = candidate.why_not(target)
            if why_not is None:
                chosen[op] = (candidate.backend, refused)
                break
            refused.append(f"no {candidate.backend}: {why_not}")
    return chosen


def _energy() -> Iterator[Check]:
    import torch

    from infopt.energy import choose_meter

    for device in ("cpu", "cuda") if torch.cuda.is_available() else ("cpu",):
        choice = choose_meter(device)
        source = choice.meter.source
        status: Status = "missing" if source is None else "ok"
        yield Check(f"meter of {device}", "info" if source == "modelled" else status, str(choice))


def _files() -> Iterator[Check]:
    from infopt.user_cache import cache_dir

    folder = cache_dir()
    yield Check("cache folder", "info", f"{folder} (INFOPT_CACHE_DIR moves it)")
    parent = next(p for p in (folder, *folder.parents) if p.exists())
    free_gib = shutil.disk_usage(parent).free / 2**30
    if not os.access(parent, os.W_OK):
        yield Check(
            "cache access", "warning", f"{parent} is not writable", "set INFOPT_CACHE_DIR elsewhere"
        )
    yield Check("free disk space", "warning" if free_gib < 1 else "info", f"{free_gib:.1f} GiB")


def _models() -> Iterator[Check]:
    from infopt.models.local_copy import local_copy
    from infopt.models.registry import list_models

    for entry in list_models():
        path = local_copy(entry)
        if path is None:
            remedy = f"infopt models fetch {entry.slug}"
            yield Check(entry.slug, "missing", f"not fetched ({entry.licence})", remedy)
        else:
            yield Check(entry.slug, "ok", str(path))


def _invariance() -> Iterator[Check]:
    """Multiply by weights of the default model's shapes, alone and in batches."""
    import torch

    from infopt.ops.dispatch import OpTarget, implementations
    from infopt.ops.invariance import find_variant_linear

    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    target = OpTarget(device, torch.float32)
    product = next(i for i in implementations()["linear"] if i.why_not(target) is None)
    generator = torch.Generator().manual_seed(0)
    linears = [
        product.load()(torch.randn(shape, generator=generator).to(device))
        for shape in ((960, 576), (3072, 576), (576, 1536), (49152, 576))
    ]
    name = f"batch invariance of the {product.backend} product (float32)"
    violation = find_variant_linear(linears, device)
    if violation is None:
        yield Check(name, "ok", "the bits of a row do not depend on its batch")
    else:
        remedy = "use backend='reference', or read float32 results as approximate"
        yield Check(name, "warning", violation, remedy)
