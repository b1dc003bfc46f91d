"""Imitations of hardware that test machines lack: counters, clocks and NVML, all labelled so."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest

from infopt.engine.observer import StepShare
from infopt.engine.stats import StepStats


@dataclass
class FakeClock:
    """Time that tests move."""

    now_s: float = 0.0

    def now(self) -> float:
        return self.now_s

    def sleep(self, seconds: float) -> None:
        self.now_s += seconds


class FakeNvmlError(Exception):
    """Stands for pynvml.NVMLError."""

    def __init__(self, value: int, text: str) -> None:
        super().__init__(text)
        self.value = value


@dataclass
class FakeNvml:
    """Imitates the part of pynvml that infopt calls, with the faults that boards have.

    ``unsupported`` and ``denied`` name calls that fail; ``ignored`` names settings that are
    accepted and not taken; ``failing`` counts how often a call fails before it works, ``late`` how
    often it is obeyed and reported as failed.
    """

    unsupported: set[str] = field(default_factory=set)
    denied: set[str] = field(default_factory=set)
    ignored: set[str] = field(default_factory=set)
    failing: dict[str, int] = field(default_factory=dict)
    late: dict[str, int] = field(default_factory=dict)
    energy_mj: int = 5_000_000
    power_mw: int = 150_000
    limit_mw: int = 700_000
    clocks: tuple[int, int] | None = None
    calls: list[str] = field(default_factory=list)

    NVMLError = FakeNvmlError
    NVML_ERROR_NOT_SUPPORTED = 3
    NVML_ERROR_NO_PERMISSION = 4
    NVML_CLOCK_SM = 1

    def _enter(self, name: str) -> None:
        self.calls.append(name)
        if name in self.unsupported:
            raise FakeNvmlError(3, "Not Supported")
        if name in self.denied:
            raise FakeNvmlError(4, "Insufficient Permissions")
        if self.failing.get(name, 0):
            self.failing[name] -= 1
            raise FakeNvmlError(999, "Unknown Error")

    def _leave(self, name: str) -> None:
        if self.late.get(name, 0):
            self.late[name] -= 1
            raise FakeNvmlError(10, "Timeout")

    def nvmlDeviceGetTotalEnergyConsumption(self, handle: Any) -> int:
        self._enter("energy")
        return self.energy_mj

    def nvmlDeviceGetPowerUsage(self, handle: Any) -> int:
        self._enter("power")
        return self.power_mw

    def nvmlDeviceGetUUID(self, handle: Any) -> str:
        return "GPU-fake"

    def nvmlDeviceGetPowerManagementLimit(self, handle: Any) -> int:
        self._enter("get_limit")
        return self.limit_mw

    def nvmlDeviceGetPowerManagementLimitConstraints(self, handle: Any) -> list[int]:
        return [200_000, 700_000]

    def nvmlDeviceSetPowerManagementLimit(self, handle: Any, limit: int) -> None:
        self._enter("set_limit")
        if "set_limit" not in self.ignored:
            self.limit_mw = limit
        self._leave("set_limit")

    def nvmlDeviceSetGpuLockedClocks(self, handle: Any, low: int, high: int) -> None:
        self._enter("set_clocks")
        if "set_clocks" not in self.ignored:
            self.clocks = (low, high)
        self._leave("set_clocks")

    def nvmlDeviceResetGpuLockedClocks(self, handle: Any) -> None:
        self._enter("reset_clocks")
        self.clocks = None

    def nvmlDeviceGetClockInfo(self, handle: Any, kind: int) -> int:
        self._enter("get_clock")
        return self.clocks[1] if self.clocks else 1980


@dataclass
class FakeCounter:
    """A counter that tests set."""

    name: str = "package-0"
    count_uj: int = 1_000_000
    wrap_uj: int | None = None
    update_s: float = 0.001
    error: Exception | None = None

    def read_uj(self) -> int:
        if self.error is not None:
            raise self.error
        return self.count_uj


@pytest.fixture
def clock() -> FakeClock:
    """Time that a test moves."""
    return FakeClock()


@pytest.fixture
def fake_nvml() -> Callable[..., FakeNvml]:
    """Class of the imitation NVML."""
    return FakeNvml


@pytest.fixture
def fake_counter() -> Callable[..., FakeCounter]:
    """Class of the imitation counter."""
    return FakeCounter


@pytest.fixture
def make_step() -> Callable[..., StepStats]:
    """Factory of steps of a given length; other numbers are 0 unless given."""

    def make(duration_s: float, **numbers: int) -> StepStats:
        values: dict[str, Any] = dict.fromkeys(StepStats.__slots__, 0)
        return StepStats(**{**values, "duration_s": duration_s, **numbers})

    return make


@pytest.fixture
def prefill() -> Callable[[str, int], StepShare]:
    """Factory of a request's share of a step that reads its prompt."""
    return lambda name, n: StepShare(name, num_prefill_tokens=n, num_prefill_pairs=n)


@pytest.fixture
def decode() -> Callable[[str, int], StepShare]:
    """Factory of a request's share of a step that writes its output."""
    return lambda name, n: StepShare(name, num_decode_tokens=n, num_decode_pairs=n)
