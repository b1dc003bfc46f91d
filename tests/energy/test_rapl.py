"""RAPL as zeus finds it: files that are absent, not permitted, or complete."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import pytest

from infopt.energy.choose import Probes, choose_meter
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


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A folder that every user may enter; pytest's own are root's alone."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        folder.chmod(0o755)
        yield folder


@contextmanager
def ordinary_user() -> Iterator[None]:
    """Do without root's right to read everything."""
    if os.geteuid() != 0:
        yield
        return
    try:
        os.seteuid(65534)
    except OSError as error:
        pytest.skip(f"no other user here: {error}")
    try:
        yield
    finally:
        os.seteuid(0)


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


@pytest.mark.parametrize("mode", [0o444, 0o000])
def test_a_counter_that_may_not_be_read_is_missing_and_not_zero(
    open_folder: Path, mode: int
) -> None:
    """Pins: what could not be read came out as 0, or as a sum of nothing."""
    found = [package(open_folder)]
    Path(found[0].rapl_file.energy_uj_path).chmod(mode)
    with ordinary_user():
        counters, missing = rapl_counters(lambda: found)
    choice = choose_meter("cpu", probes=Probes(rapl=lambda: (counters, missing)))
    if mode:
        assert [c.name for c in counters] == ["package-0", "dram-0"]
        assert (choice.meter.source, choice.why_not) == ("rapl", {})
        return
    assert [c.name for c in counters] == ["dram-0"]
    assert "package-0: permission" in missing["package-0"]
    assert "zeusd" in missing["package-0"]
    assert choice.meter.source == "modelled"  # memory alone is no energy of the machine
    assert choice.why_not == {"rapl": missing["package-0"]}


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
