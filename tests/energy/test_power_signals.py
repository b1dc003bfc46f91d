"""A process that ends in the middle of a sweep: by signals, once or twice, or killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from infopt.energy.nvml_power import NvmlPowerSettings
from infopt.energy.power_settings import recover

SCRIPT = """
import sys, time
from infopt.energy.power_settings import PowerPoint, PowerState, guarded

class Board:
    cap, clock = 700_000, None
    def state(self):
        return PowerState("GPU-fake", self.cap)
    def set_cap(self, milliwatts):
        if milliwatts > self.cap:
            print("putting back", flush=True)
            sys.stdin.readline()  # a driver takes its time
        self.cap = milliwatts
        print("cap", milliwatts, flush=True)
    def lock_clock(self, mhz):
        self.clock = mhz
        print("clock", mhz, flush=True)
    def unlock_clock(self):
        self.clock = None
        print("clock free", flush=True)

with guarded(Board(), sys.argv[1]) as guard:
    guard.apply(PowerPoint(cap_w=300, clock_mhz=1200))
    if sys.argv[2] == "wait":
        time.sleep(60)
print("went on", flush=True)
"""
SIGNALS = [signal.SIGTERM, signal.SIGINT]


@pytest.fixture
def state_file(tmp_path: Path) -> Path:
    return tmp_path / "power.json"


@pytest.fixture
def sweep(state_file: Path) -> Iterator[Callable[[str], subprocess.Popen[str]]]:
    """Start a process that has changed its board and ``wait``s, or ``end``s its work at once."""
    started = []

    def start(what: str) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, "-c", SCRIPT, str(state_file), what],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=dict(os.environ),
        )
        started.append(process)
        assert lines(process, 2) == ["cap 300000", "clock 1200"]
        assert state_file.exists()
        return process

    yield start
    for process in started:
        process.kill()
        process.communicate()


def lines(process: subprocess.Popen[str], count: int) -> list[str]:
    assert process.stdout is not None
    return [process.stdout.readline().rstrip("\n") for _ in range(count)]


@pytest.mark.parametrize("number", SIGNALS)
def test_a_signal_puts_the_board_back(sweep, state_file, number: signal.Signals) -> None:
    """SIGTERM ends a process without any ``finally`` unless somebody cares."""
    process = sweep("wait")
    process.send_signal(number)
    output, _ = process.communicate("go\n", timeout=60)
    assert output.splitlines() == ["clock free", "putting back", "cap 700000"]
    assert process.returncode == 128 + number
    assert not state_file.exists()  # which goes only once everything is put back


@pytest.mark.parametrize("number", SIGNALS)
def test_a_second_signal_does_not_leave_it_half_put_back(
    sweep, state_file, number: signal.Signals
) -> None:
    """Pins: schedulers send a signal to every process of a job, and users press Ctrl-C twice."""
    process = sweep("wait")
    process.send_signal(signal.SIGTERM)
    assert lines(process, 2) == ["clock free", "putting back"]
    process.send_signal(number)
    output, _ = process.communicate("go\n", timeout=60)
    assert output == "cap 700000\n"
    assert process.returncode == 128 + signal.SIGTERM
    assert not state_file.exists()


def test_a_signal_while_it_is_put_back_after_a_good_end_waits(sweep, state_file) -> None:
    process = sweep("end")
    assert lines(process, 2) == ["clock free", "putting back"]
    process.send_signal(signal.SIGTERM)
    output, _ = process.communicate("go\n", timeout=60)
    assert output == "cap 700000\n"
    assert process.returncode == 128 + signal.SIGTERM
    assert not state_file.exists()


def test_what_a_killed_process_has_left_is_put_back_from_its_file(
    sweep, state_file, fake_nvml
) -> None:
    process = sweep("wait")
    process.kill()
    process.communicate(timeout=60)
    assert state_file.exists()
    nvml = fake_nvml(limit_mw=300_000, clocks=(1200, 1200))
    assert recover(NvmlPowerSettings(nvml, "handle", sleep=lambda _: None), state_file)
    assert (nvml.limit_mw, nvml.clocks) == (700_000, None)
    assert not state_file.exists()
