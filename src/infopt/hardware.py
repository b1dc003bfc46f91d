"""The machine: a fingerprint for records, and its memory bandwidth and FLOP/s as measured.

Published peaks describe chips; a virtual machine with two cores of one has its own limits, so a
roofline here stands on measurements. Nothing in a fingerprint names a host or a user.
"""

from __future__ import annotations

import functools
import hashlib
import json
import os
import platform
import resource
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from infopt.errors import MeasurementError

_ISA_FEATURES = (
    *("avx2", "avx512f", "avx512_bf16", "avx512_fp16", "avx512_vnni", "avx_vnni"),
    *("amx_tile", "amx_bf16", "amx_int8", "asimd", "sve", "i8mm", "bf16"),
)
"""Flags of /proc/cpuinfo that matter for inference."""

_MIN_WORKING_SET = 256 * 2**20
_MAX_WORKING_SET = 1024 * 2**20
_ROW_LENGTH = 4096


@dataclass(frozen=True, slots=True)
class RateMeasurement:
    """A measured rate.

    Attributes:
        quantity: ``memory_bytes_per_s`` or ``matmul_flops_per_s``.
        samples: One rate per repeat, in units per second.
        device: Device it was measured on.
        num_threads: Compute threads (CPU).
        detail: What was run: sizes and types.
    """

    quantity: str
    samples: tuple[float, ...]
    device: str
    num_threads: int
    detail: dict[str, Any]

    @property
    def median(self) -> float:
        """Median of the repeats."""
        return statistics.median(self.samples)

    @property
    def best(self) -> float:
        """Highest of the repeats: what the machine can do when nothing else disturbs it."""
        return max(self.samples)

    def to_dict(self) -> dict[str, Any]:
        """Return plain data for a result record."""
        return {
            "quantity": self.quantity,
            "median": self.median,
            "best": self.best,
            "samples": list(self.samples),
            "device": self.device,
            "num_threads": self.num_threads,
            **self.detail,
        }


def fingerprint() -> dict[str, Any]:
    """Describe the machine as plain data.

    ``hardware_id`` is a short hash of the hardware alone: it survives upgrades of Python or torch
    and tells whether two records may be compared in absolute terms.
    """
    hardware = {
        "cpu_model": cpu_model(),
        "architecture": platform.machine(),
        "num_cores": usable_cores(),
        "cpu_features": cpu_features(),
        "caches_bytes": cpu_caches(),
        "ram_gib": round(total_memory_bytes() / 2**30),
        "gpus": gpu_names(),
    }
    digest = hashlib.sha256(json.dumps(hardware, sort_keys=True).encode()).hexdigest()
    return {
        "hardware_id": digest[:12],
        **hardware,
        "os": platform.system(),
        "os_release": platform.release(),
        "python_version": platform.python_version(),
        "torch_version": torch.__version__,
    }


def cpu_model() -> str:
    """Return the processor's name, or its architecture where the system does not say."""
    info = _cpuinfo()
    return info.get("model name") or platform.processor() or platform.machine()


def cpu_features(flags: set[str] | None = None) -> list[str]:
    """Return the instruction sets that matter for inference and are present.

    Args:
        flags: Flags of /proc/cpuinfo; default is this machine's.
    """
    if flags is None:
        info = _cpuinfo()
        flags = set((info.get("flags") or info.get("Features") or "").split())
    return [flag for flag in _ISA_FEATURES if flag in flags]


def cpu_caches(root: Path = Path("/sys/devices/system/cpu/cpu0/cache")) -> dict[str, int]:
    """Return data cache sizes in bytes by level (``L1d``, ``L2``, ``L3``); empty if unknown."""
    units = {"K": 2**10, "M": 2**20, "G": 2**30}
    sizes = {}
    for index in sorted(root.glob("index*")):
        kind, level, size = (_read(index / name) for name in ("type", "level", "size"))
        if kind and level and size and kind != "Instruction":
            name = f"L{level}" + ("d" if kind == "Data" else "")
            sizes[name] = int(size.rstrip("KMG")) * units.get(size[-1], 1)
    return sizes


def usable_cores(cgroup_root: Path = Path("/sys/fs/cgroup")) -> int:
    """Return how many cores this process may use: affinity mask and cgroup quota, at least 1."""
    has_mask = hasattr(os, "sched_getaffinity")
    cores = len(os.sched_getaffinity(0)) if has_mask else os.cpu_count() or 1
    quota = _cgroup_quota(cgroup_root)
    return max(min(cores, int(quota)) if quota is not None else cores, 1)


def total_memory_bytes() -> int:
    """Return the memory of the machine."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def peak_memory_bytes() -> int:
    """Return the most memory this process has held at once."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024  # Linux counts KiB


def gpu_names() -> list[str]:
    """Return the names of the visible GPUs."""
    if not torch.cuda.is_available():
        return []
    return [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]


def measure_memory_bandwidth(
    num_threads: int | None = None,
    *,
    device: str = "cpu",
    working_set_bytes: int | None = None,
    repeats: int = 5,
) -> RateMeasurement:
    """Measure how fast a large matrix is read.

    A float32 matrix-vector product and a sum read each value once and compute next to nothing; the
    faster of the two counts, since a BLAS that is not tuned for a processor can take twice as long
    as its memory. The matrix is larger than the last-level cache where 1 GiB is enough for that;
    ``exceeds_cache`` tells. A processor with a very large shared cache can serve a small model
    faster than this figure.

    Args:
        num_threads: Compute threads; default is the usable cores.
        device: ``cpu`` or a CUDA device.
        working_set_bytes: Size of the matrix; default is twice the last-level cache, from 256 MiB
            to 1 GiB. Pass a model's own size to get the bandwidth it can hope for.
        repeats: Timed repeats, after one that is not.
    """
    llc = max(cpu_caches().values(), default=0) if device == "cpu" else 0
    if working_set_bytes is None:
        working_set_bytes = min(max(2 * llc, _MIN_WORKING_SET), _MAX_WORKING_SET)
    num_rows = max(working_set_bytes // (4 * _ROW_LENGTH), 1)
    matrix = torch.ones(num_rows, _ROW_LENGTH, device=device)
    vector = torch.ones(_ROW_LENGTH, device=device)
    threads = num_threads or usable_cores()
    readers = {"mv": lambda: torch.mv(matrix, vector), "sum": matrix.sum}
    times = {name: _time(reader, threads, device, repeats) for name, reader in readers.items()}
    fastest = min(times, key=lambda name: min(times[name]))
    num_bytes = 4 * num_rows * _ROW_LENGTH
    return RateMeasurement(
        quantity="memory_bytes_per_s",
        samples=tuple(num_bytes / s for s in times[fastest]),
        device=device,
        num_threads=threads,
        detail={
            "working_set_bytes": num_bytes,
            "exceeds_cache": num_bytes > llc,
            "reader": fastest,
        },
    )


def measure_matmul_flops(
    dtype: torch.dtype = torch.float32,
    num_threads: int | None = None,
    *,
    device: str = "cpu",
    size: int = 2048,
    repeats: int = 5,
    prepare: Callable[[torch.Tensor], Callable[[torch.Tensor], torch.Tensor]] | None = None,
) -> RateMeasurement:
    """Measure the FLOP/s of a square matrix product, two per multiply-add.

    Args:
        dtype: Compute type.
        num_threads: Compute threads; default is the usable cores.
        device: ``cpu`` or a CUDA device.
        size: Rows and columns; larger sizes suit GPUs.
        repeats: Timed repeats, after one that is not.
        prepare: Takes the right matrix and returns what multiplies with it; default `torch.mm`.
    """
    left = torch.ones(size, size, dtype=dtype, device=device)
    right = torch.ones(size, size, dtype=dtype, device=device)
    threads = num_threads or usable_cores()
    multiply = prepare(right) if prepare else lambda x: torch.mm(x, right)
    seconds = _time(lambda: multiply(left), threads, device, repeats)
    return RateMeasurement(
        quantity="matmul_flops_per_s",
        samples=tuple(2 * size**3 / s for s in seconds),
        device=device,
        num_threads=threads,
        detail={"dtype": str(dtype).removeprefix("torch."), "size": size},
    )


@functools.cache
def memory_bandwidth(device: str = "cpu", num_threads: int | None = None) -> float:
    """Return the memory bandwidth in bytes/s, measured once per process."""
    return measure_memory_bandwidth(num_threads, device=device).best


@functools.cache
def matmul_flops(
    dtype: torch.dtype = torch.float32, device: str = "cpu", num_threads: int | None = None
) -> float:
    """Return the matrix-product FLOP/s of a type, measured once per process."""
    return measure_matmul_flops(dtype, num_threads, device=device).best


def _time(
    function: Callable[[], object], num_threads: int, device: str, repeats: int
) -> list[float]:
    """Return seconds per call; the first call is not counted, and the thread count is restored."""
    if repeats < 1:
        raise MeasurementError(
            f"repeats must be at least 1, got {repeats}.", field="repeats", value=repeats
        )
    before = torch.get_num_threads()
    torch.set_num_threads(num_threads)
    try:
        function()
        return [_time_once(function, device) for _ in range(repeats)]
    finally:
        torch.set_num_threads(before)


def _time_once(function: Callable[[], object], device: str) -> float:
    synchronize = (lambda: None) if device == "cpu" else (lambda: torch.cuda.synchronize(device))
    synchronize()
    start = time.perf_counter()
    function()
    synchronize()
    return time.perf_counter() - start


@functools.cache
def _cpuinfo() -> dict[str, str]:
    """Return the fields of the first processor in /proc/cpuinfo (empty elsewhere)."""
    text = _read(Path("/proc/cpuinfo")) or ""
    lines = text.split("\n\n")[0].splitlines()
    pairs = (line.partition(":") for line in lines if ":" in line)
    return {key.strip(): value.strip() for key, _, value in pairs}


def _cgroup_quota(root: Path) -> float | None:
    """Return the smallest CPU quota of this process's cgroups in cores (None: no limit)."""
    own = [line.rpartition(":")[2] for line in (_read(Path("/proc/self/cgroup")) or "").split("\n")]
    folders = {root, root / "cpu"}
    for path in filter(None, own):
        leaf = root / path.lstrip("/")
        folders |= {leaf, *(p for p in leaf.parents if p.is_relative_to(root))}
    quotas = [q for folder in folders if (q := _folder_quota(folder)) is not None]
    return min(quotas, default=None)


def _folder_quota(folder: Path) -> float | None:
    quota, _, period = (_read(folder / "cpu.max") or "").partition(" ")
    if not quota:  # version 1 has two files, with -1 for no limit
        quota = _read(folder / "cpu.cfs_quota_us") or "max"
        period = _read(folder / "cpu.cfs_period_us") or ""
    if quota in ("max", "-1"):
        return None
    return int(quota) / int(period or 100_000)


def _read(path: Path) -> str | None:
    try:
        return path.read_text(encoding="utf-8").strip()
    except OSError:
        return None
