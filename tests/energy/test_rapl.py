"""RAPL as zeus finds it: files that are absent, not permitted, or complete."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from infopt.energy.counters import unreadable
from infopt.energy.rapl import RaplCounter, rapl_counters, zeus_packages


def package(root: Path, index: int = 0, *, has_dram: bool = True) -> SimpleNamespace:
    """Imitate zeus's object of a package on recorded files."""
    return SimpleNamespace(
        rapl_file=_file(root / f"package{index}", "1000", "262143328850"),
        dram=_file(root / f"dram{index}", "2000", "65712999613") if has_dram else None,
    )


def _file(folder: Path, count: str, wrap: str) -> SimpleNamespace:
    folder.mkdir()
    (folder / "energy_uj").write_text(f"{count}\n", "ascii")
    return SimpleNamespace(
        energy_uj_path=str(folder / "energy_uj"), max_energy_range_uj=float(wrap)
    )


def test_packages_and_memory_are_counters_with_their_range(tmp_path: Path) -> None:
    counters, missing = rapl_counters(lambda: [package(tmp_path, 0), package(tmp_path, 1)])
    assert [c.name for c in counters] == ["package-0", "dram-0", "package-1", "dram-1"]
    assert [c.read_uj() for c in counters] == [1000, 2000, 1000, 2000]
    assert counters[0].wrap_uj == 262_143_328_850
    assert missing == {}


def test_memory_without_a_counter_is_named(tmp_path: Path) -> None:
    counters, missing = rapl_counters(lambda: [package(tmp_path, has_dram=False)])
    assert [c.name for c in counters] == ["package-0"]
    assert missing == {"dram-0": "absent"}


def test_a_counter_that_may_not_be_read_is_missing_and_not_zero(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Files of mode 000 open all the same for root, so the refusal is imitated."""

    def refuse(self: Path, encoding: str) -> str:
        raise PermissionError(13, "Permission denied", str(self))

    found = [package(tmp_path)]
    monkeypatch.setattr(Path, "read_text", refuse)
    counters, missing = rapl_counters(lambda: found)
    assert counters == []
    assert "permission" in missing["package-0"]
    assert "zeusd" in missing["package-0"]


def test_no_counters_at_all_is_a_reason() -> None:
    def absent() -> list[object]:
        raise unreadable("package", "absent", "no RAPL")

    assert rapl_counters(absent) == ([], {"package": "package: absent (no RAPL)."})


def test_a_file_that_went_away_is_absent(tmp_path: Path) -> None:
    counter = RaplCounter("package-0", tmp_path / "gone", 1)
    with pytest.raises(Exception, match="absent"):
        counter.read_uj()


class Daemon:
    """Imitates a package that zeus's daemon reads."""

    def get_total_energy_consumption(self) -> SimpleNamespace:
        return SimpleNamespace(cpu_mj=1.5, dram_mj=None)

    def supports_get_dram_energy_consumption(self) -> bool:
        return True


def test_zeus_daemon_reads_for_users_without_privileges() -> None:
    counters, missing = rapl_counters(lambda: [Daemon()])
    assert [(c.name, c.read_uj()) for c in counters] == [("package-0", 1500)]
    assert "zeusd gives no value" in missing["dram-0"]


def test_without_zeus_the_reason_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setitem(sys.modules, "zeus.device.cpu", None)
    monkeypatch.setattr("infopt.energy.rapl.POWERCAP", tmp_path)
    with pytest.raises(Exception, match=r"pip install 'infopt\[energy\]'"):
        zeus_packages()
    monkeypatch.setattr("infopt.energy.rapl.POWERCAP", tmp_path / "none")
    with pytest.raises(Exception, match="absent"):
        zeus_packages()


def test_zeus_itself_on_recorded_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The seam to the real library: its names and units, on files laid out as the kernel does."""
    rapl = pytest.importorskip("zeus.device.cpu.rapl", reason="zeus is an extra")
    cpu = pytest.importorskip("zeus.device.cpu")
    zone = tmp_path / "intel-rapl:0"
    for folder, name in ((zone, "package-0"), (zone / "intel-rapl:0:0", "dram")):
        folder.mkdir()
        (folder / "name").write_text(name, "ascii")
        (folder / "energy_uj").write_text("123456", "ascii")
        (folder / "max_energy_range_uj").write_text("262143328850", "ascii")
    monkeypatch.setattr(rapl, "RAPL_DIR", str(tmp_path))
    monkeypatch.setattr(cpu, "_cpus", None)
    rapl.rapl_is_available.cache_clear()
    counters, missing = rapl_counters()
    rapl.rapl_is_available.cache_clear()
    assert [(c.name, c.read_uj(), c.wrap_uj) for c in counters] == [
        ("package-0", 123456, 262_143_328_850),
        ("dram-0", 123456, 262_143_328_850),
    ]
    assert missing == {}
