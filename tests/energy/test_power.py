"""Power caps and clocks on an imitated NVML that misbehaves; the board is always put back."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from infopt.energy.counters import Edge, energy_between
from infopt.energy.errors import CounterResetError, PowerControlError, PowerPermissionError
from infopt.energy.nvml import NvmlCounter
from infopt.energy.nvml_power import NvmlPowerSettings
from infopt.energy.power_settings import PowerPoint, PowerState, guarded, put_back, recover
from infopt.energy.power_sweep import PowerSweep, run_sweep
from infopt.errors import ConfigError

SWEEP = PowerSweep(caps_w=(300, 500), clocks_mhz=(1200,))


def settings_of(nvml) -> NvmlPowerSettings:
    return NvmlPowerSettings(nvml, "handle", sleep=lambda seconds: None)


@pytest.fixture
def state_file(tmp_path: Path) -> Path:
    return tmp_path / "power.json"


def test_a_sweep_visits_every_setting_and_puts_the_board_back(fake_nvml, state_file) -> None:
    nvml = fake_nvml()

    def work(point: PowerPoint) -> tuple[int, tuple[int, int] | None]:
        assert json.loads(state_file.read_text())["cap_mw"] == 700_000
        return nvml.limit_mw // 1000, nvml.clocks

    swept = run_sweep(SWEEP, lambda: settings_of(nvml), state_file, work)
    assert [s.point.slug for s in swept] == ["default", "cap-300w", "cap-500w", "clock-1200mhz"]
    assert [s.result for s in swept] == [
        (700, None),
        (300, None),
        (500, None),
        (700, (1200, 1200)),
    ]
    assert (nvml.limit_mw, nvml.clocks) == (700_000, None)
    assert not state_file.exists()


def test_nothing_is_touched_unless_the_configuration_asks(state_file) -> None:
    def never() -> NvmlPowerSettings:
        raise AssertionError("the board was opened")

    assert run_sweep(PowerSweep(), never, state_file, lambda point: 1) == []


@pytest.mark.parametrize("error", [ValueError("boom"), KeyboardInterrupt(), SystemExit(1)])
def test_whatever_ends_the_work_the_board_is_put_back(fake_nvml, state_file, error) -> None:
    nvml = fake_nvml()

    def work(point: PowerPoint) -> None:
        if point.clock_mhz:
            raise error

    with pytest.raises(type(error)):
        run_sweep(SWEEP, lambda: settings_of(nvml), state_file, work)
    assert (nvml.limit_mw, nvml.clocks) == (700_000, None)
    assert not state_file.exists()


@pytest.mark.parametrize("denied", ["set_limit", "set_clocks"])
def test_without_permission_nothing_is_measured_and_the_remedy_is_said(
    fake_nvml, state_file, denied: str
) -> None:
    nvml, measured = fake_nvml(denied={denied}), []
    sweep = PowerSweep(caps_w=(300,)) if denied == "set_limit" else PowerSweep(clocks_mhz=(1200,))
    with pytest.raises(PowerPermissionError, match="Run as root"):
        run_sweep(sweep, lambda: settings_of(nvml), state_file, measured.append)
    assert measured == []
    assert nvml.limit_mw == 700_000
    assert not state_file.exists()


@pytest.mark.parametrize(
    ("ignored", "sweep"),
    [("set_limit", PowerSweep(caps_w=(300,))), ("set_clocks", PowerSweep(clocks_mhz=(1200,)))],
)
def test_a_setting_that_is_silently_ignored_is_an_error(
    fake_nvml, state_file, ignored: str, sweep: PowerSweep
) -> None:
    """A board that says yes and does nothing would give a sweep that looks flat."""
    nvml = fake_nvml(ignored={ignored})
    with pytest.raises(PowerControlError, match="the board still says"):
        run_sweep(sweep, lambda: settings_of(nvml), state_file, lambda point: 1)
    assert (nvml.limit_mw, nvml.clocks) == (700_000, None)
    assert not state_file.exists()


def test_putting_back_is_tried_again(fake_nvml, state_file, monkeypatch) -> None:
    monkeypatch.setattr("infopt.energy.power_settings._SETTLE_S", 0)
    nvml = fake_nvml()
    with guarded(settings_of(nvml), state_file) as guard:
        guard.apply(PowerPoint(cap_w=300, clock_mhz=1200))
        nvml.failing = {"set_limit": 1, "reset_clocks": 2}
    assert (nvml.limit_mw, nvml.clocks) == (700_000, None)
    assert not state_file.exists()


def test_what_cannot_be_put_back_keeps_its_file_and_says_what_to_type(
    fake_nvml, state_file, monkeypatch
) -> None:
    monkeypatch.setattr("infopt.energy.power_settings._SETTLE_S", 0)
    nvml = fake_nvml()
    with (
        pytest.raises(PowerControlError, match="nvidia-smi --power-limit=700"),
        guarded(settings_of(nvml), state_file) as guard,
    ):
        guard.apply(PowerPoint(cap_w=300, clock_mhz=1200))
        nvml.failing = {"set_limit": 99}
    assert nvml.clocks is None  # the other setting was put back all the same
    assert state_file.exists()
    nvml.failing = {}
    assert recover(settings_of(nvml), state_file)
    assert nvml.limit_mw == 700_000
    assert not recover(settings_of(nvml), state_file)


def test_the_next_run_puts_back_what_a_crash_has_left(fake_nvml, state_file) -> None:
    nvml = fake_nvml(limit_mw=300_000, clocks=(1200, 1200))
    state_file.write_text('{"device": "GPU-fake", "cap_mw": 650000}')
    seen = run_sweep(
        PowerSweep(caps_w=(400,)),
        lambda: settings_of(nvml),
        state_file,
        lambda point: (nvml.limit_mw, nvml.clocks),
    )
    assert seen[0].result == (650_000, None)
    assert nvml.limit_mw == 650_000


@pytest.mark.parametrize(
    ("text", "words"),
    [('{"device": "GPU-other", "cap_mw": 1}', "this board is"), ("{", "cannot be read")],
)
def test_a_state_file_that_is_not_ours_stops_everything(
    fake_nvml, state_file, text: str, words: str
) -> None:
    state_file.write_text(text)
    nvml = fake_nvml()
    with pytest.raises(PowerControlError, match=words):
        recover(settings_of(nvml), state_file)
    assert state_file.exists()
    assert "set_limit" not in nvml.calls


def test_a_cap_outside_the_board_is_refused_with_its_range(fake_nvml, state_file) -> None:
    nvml = fake_nvml()
    with pytest.raises(PowerControlError, match="200 to 700 W"):
        run_sweep(PowerSweep(caps_w=(100,)), lambda: settings_of(nvml), state_file, lambda point: 1)
    assert nvml.limit_mw == 700_000


def test_a_board_without_clock_locks_can_still_be_capped(fake_nvml, state_file) -> None:
    nvml = fake_nvml(unsupported={"reset_clocks"})
    put_back(settings_of(nvml), PowerState("GPU-fake", 500_000))
    assert nvml.limit_mw == 500_000


def test_a_counter_that_is_reset_by_the_driver_gives_no_energy(fake_nvml) -> None:
    nvml = fake_nvml()
    counter = NvmlCounter(nvml, "handle", "gpu-0")
    first = Edge(0.0, counter.read_uj())
    nvml.energy_mj = 10
    with pytest.raises(CounterResetError):
        energy_between(counter, first, Edge(5.0, counter.read_uj()))


@pytest.mark.parametrize("caps", [(0,), (-1,), (True,), (None,), ("300",)])
def test_impossible_caps_are_refused(caps) -> None:
    with pytest.raises(ConfigError, match=r"power\.caps_w"):
        PowerSweep(caps_w=caps)


def test_a_change_that_was_made_although_it_failed_is_put_back(fake_nvml, state_file) -> None:
    """A call that times out may have been obeyed: what is not known is put back."""
    for call, point in (
        ("set_limit", PowerSweep(caps_w=(300,))),
        ("set_clocks", PowerSweep(clocks_mhz=(1200,))),
    ):
        nvml = fake_nvml(late={call: 1})
        with pytest.raises(PowerControlError, match="Timeout"):
            run_sweep(point, lambda nvml=nvml: settings_of(nvml), state_file, lambda point: 1)
        assert (nvml.limit_mw, nvml.clocks) == (700_000, None)
        assert not state_file.exists()


def test_whatever_a_driver_raises_the_other_setting_is_put_back(
    fake_nvml, state_file, monkeypatch
) -> None:
    """Pins: an error that was not NVML's own ended the guard with the cap still set."""
    monkeypatch.setattr("infopt.energy.power_settings._SETTLE_S", 0)
    nvml = fake_nvml()
    with (
        pytest.raises(PowerControlError, match=r"gone.*nvidia-smi --reset-gpu-clocks"),
        guarded(settings_of(nvml), state_file) as guard,
    ):
        guard.apply(PowerPoint(cap_w=300, clock_mhz=1200))

        def gone(handle: object) -> None:
            raise RuntimeError("the library is gone")

        nvml.nvmlDeviceResetGpuLockedClocks = gone
    assert nvml.limit_mw == 700_000
    assert state_file.exists()
