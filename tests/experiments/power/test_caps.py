"""The slice `caps`: only with a GPU and permission, and the board is put back."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import pytest
import yaml

from infopt.energy.counters import unreadable
from infopt.energy.errors import PowerPermissionError
from infopt.energy.power_settings import PowerState, permission_error
from infopt.experiments.config import complete_config
from infopt.experiments.power import caps, stage
from infopt.experiments.power.caps import open_board, run_caps
from infopt.experiments.power.skipping import SkippedError
from infopt.experiments.spec import slice_names

ROOT = Path(__file__).parents[3]


@dataclass
class FakeBoard:
    """Imitates the settings of a board; the work itself runs on the CPU here."""

    is_allowed: bool = True
    cap_mw: int = 700_000
    clock_mhz: int | None = None
    seen: list[tuple[int, int | None]] = field(default_factory=list)

    def state(self) -> PowerState:
        return PowerState("GPU-fake", self.cap_mw)

    def set_cap(self, milliwatts: int) -> None:
        if not self.is_allowed:
            raise permission_error("nvmlDeviceSetPowerManagementLimit", "Insufficient Permissions")
        self.cap_mw = milliwatts
        self.seen.append((self.cap_mw, self.clock_mhz))

    def lock_clock(self, mhz: int) -> None:
        self.clock_mhz = mhz
        self.seen.append((self.cap_mw, self.clock_mhz))

    def unlock_clock(self) -> None:
        self.clock_mhz = None


def run(spec, folder, board):
    return run_caps(
        spec, folder, num_threads=1, open_settings=lambda: board, has_gpu=lambda spec: True
    )


def test_every_setting_leaves_a_record_and_the_board_is_put_back(make_power_spec, tmp_path):
    board = FakeBoard()
    found = run(make_power_spec("caps"), tmp_path, board)
    assert found["records"] == ["caps.default", "caps.cap-300w", "caps.clock-900mhz"]
    assert found["reference"] == "default"
    assert (300_000, None) in board.seen
    assert (700_000, 900) in board.seen
    assert (board.cap_mw, board.clock_mhz) == (700_000, None)
    assert not (tmp_path / "power_state.json").exists()


def test_without_permission_nothing_is_measured_and_the_remedy_is_said(make_power_spec, tmp_path):
    with pytest.raises(PowerPermissionError, match="CAP_SYS_ADMIN"):
        run(make_power_spec("caps"), tmp_path, FakeBoard(is_allowed=False))
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize("name", ["config", "gpu", "ci"])
def test_no_configuration_that_ships_changes_a_board(schema, name):
    given = yaml.safe_load((ROOT / "config" / f"{name}.yaml").read_text("utf-8"))
    assert stage.CAPS not in slice_names(complete_config(given, schema), "power")


def test_on_a_cpu_the_slice_is_skipped_with_the_reason(make_power_spec, tmp_path):
    found = stage.run(make_power_spec("caps"), tmp_path, num_threads=1)
    assert found["records"] == []
    assert "runs on the CPU" in found["skipped"]


def test_without_nvml_the_slice_is_skipped_with_the_reason(monkeypatch):
    def absent():
        raise unreadable("nvml", "absent", "NVML Shared Library Not Found")

    monkeypatch.setattr(caps, "load_nvml", absent)
    with pytest.raises(SkippedError, match="Shared Library Not Found"):
        open_board()
