"""The machine: a fingerprint for records. Nothing in it names a host or a user."""

from __future__ import annotations

import functools
import hashlib
import json
import os
import platform
import resource
import sys
from pathlib import Path
from typing import Any

import torch

_ISA_FEATURES = (
    *("avx2", "avx512f", "avx512_bf16", "avx512_fp16", "avx512_vnni", "avx_vnni"),
    *("amx_tile", "amx_bf16", "amx_int8", "asimd", "sve", "i8mm", "bf16"),
)
"""Flags of /proc/cpuinfo that matter for inference."""


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
