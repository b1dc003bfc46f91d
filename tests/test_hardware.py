import json
import os
import platform
import socket
from pathlib import Path

import pytest
import torch

from infopt import hardware


def cgroup(tmp_path: Path, **files: str) -> Path:
    for name, text in files.items():
        path = tmp_path / name.replace("__", "/").replace("_DOT_", ".")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return tmp_path


def test_fingerprint_is_plain_stable_and_anonymous() -> None:
    first, again = hardware.fingerprint(), hardware.fingerprint()
    assert first == again
    text = json.dumps(first)
    assert socket.gethostname() not in text
    assert str(Path.home()) not in text
    assert len(first["hardware_id"]) == 12
    assert first["python_version"] == platform.python_version()
    assert first["torch_version"] == torch.__version__
    assert first["num_cores"] >= 1
    assert first["cpu_model"]


def test_hardware_id_ignores_software(monkeypatch: pytest.MonkeyPatch) -> None:
    before = hardware.fingerprint()
    monkeypatch.setattr(platform, "python_version", lambda: "9.9")
    upgraded = hardware.fingerprint()
    assert upgraded["python_version"] == "9.9"
    assert upgraded["hardware_id"] == before["hardware_id"]
    monkeypatch.setattr(hardware, "usable_cores", lambda: 1234)
    assert hardware.fingerprint()["hardware_id"] != before["hardware_id"]


def test_cpu_features_are_those_of_the_flags() -> None:
    assert hardware.cpu_features({"avx2", "avx512_vnni", "sse"}) == ["avx2", "avx512_vnni"]
    assert hardware.cpu_features(set()) == []


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({"cpu_DOT_max": "150000 100000"}, 1),
        ({"cpu_DOT_max": "50000 100000"}, 1),
        ({"cpu_DOT_max": "400000 100000"}, 4),
        ({"cpu_DOT_max": "max 100000"}, 8),
        ({"cpu__cpu_DOT_cfs_quota_us": "300000", "cpu__cpu_DOT_cfs_period_us": "100000"}, 3),
        ({"cpu__cpu_DOT_cfs_quota_us": "-1", "cpu__cpu_DOT_cfs_period_us": "100000"}, 8),
        ({}, 8),
    ],
)
def test_usable_cores_respect_affinity_and_cgroup(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, files: dict[str, str], expected: int
) -> None:
    """Pins thread counts of the host inside a container that may use fewer cores."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)), raising=False)
    assert hardware.usable_cores(cgroup(tmp_path, **files)) == expected


def test_usable_cores_never_exceed_the_affinity_mask(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {3}, raising=False)
    assert hardware.usable_cores(cgroup(tmp_path, cpu_DOT_max="800000 100000")) == 1


def test_caches_are_read_by_level(tmp_path: Path) -> None:
    caches = [
        ("Data", "1", "48K"),
        ("Instruction", "1", "32K"),
        ("Unified", "2", "2048K"),
        ("Unified", "3", "300M"),
    ]
    for index, (kind, level, size) in enumerate(caches):
        folder = tmp_path / f"index{index}"
        folder.mkdir()
        for name, value in (("type", kind), ("level", level), ("size", size)):
            (folder / name).write_text(value + "\n")
    assert hardware.cpu_caches(tmp_path) == {"L1d": 49152, "L2": 2**21, "L3": 300 * 2**20}
    assert hardware.cpu_caches(tmp_path / "nowhere") == {}


def test_memory_figures_are_in_bytes() -> None:
    assert hardware.total_memory_bytes() > 2**28
    # A process that has imported torch holds more than 50 MB, and less than the machine has.
    assert 50 * 2**20 < hardware.peak_memory_bytes() < hardware.total_memory_bytes()
