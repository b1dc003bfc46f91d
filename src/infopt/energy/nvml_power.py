"""Power cap and clocks of a board through NVML; what it takes without a word is checked."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from infopt.energy.errors import PowerControlError
from infopt.energy.power_settings import PowerState, permission_error

_CAP_TOLERANCE_MW = 1000
_CLOCK_TOLERANCE_MHZ = 30
"""Boards round a clock to one they have; they are 15 MHz apart."""


@dataclass(frozen=True, slots=True)
class NvmlPowerSettings:
    """Settings of one board.

    Attributes:
        nvml: The module ``pynvml``, initialised.
        handle: NVML's handle of the board.
        settle_s: Time a board gets to take a clock before it is read back.
        sleep: Waits.
    """

    nvml: Any
    handle: Any
    settle_s: float = 0.2
    sleep: Callable[[float], object] = time.sleep

    def state(self) -> PowerState:
        """Return board and cap."""
        uuid = self._call("nvmlDeviceGetUUID")
        cap = self._call("nvmlDeviceGetPowerManagementLimit")
        return PowerState(uuid.decode() if isinstance(uuid, bytes) else str(uuid), int(cap))

    def set_cap(self, milliwatts: int) -> None:
        """Set the power cap.

        Raises:
            PowerPermissionError: This user may not.
            PowerControlError: Out of the board's range, refused, or not taken.
        """
        low, high = self._call("nvmlDeviceGetPowerManagementLimitConstraints")
        if not low <= milliwatts <= high:
            raise PowerControlError(
                f"A cap of {milliwatts / 1e3:g} W is out of this board's range.",
                field="power.caps_w",
                value=milliwatts / 1e3,
                remedy=f"It takes {low / 1e3:g} to {high / 1e3:g} W.",
            )
        self._call("nvmlDeviceSetPowerManagementLimit", milliwatts)
        taken = int(self._call("nvmlDeviceGetPowerManagementLimit"))
        if abs(taken - milliwatts) > _CAP_TOLERANCE_MW:
            raise _ignored("power cap", f"{milliwatts / 1e3:g} W", f"{taken / 1e3:g} W")

    def lock_clock(self, mhz: int) -> None:
        """Lock the clock of the multiprocessors.

        Raises:
            PowerPermissionError: This user may not.
            PowerControlError: Refused, or the board runs faster than it was told to.
        """
        self._call("nvmlDeviceSetGpuLockedClocks", mhz, mhz)
        self.sleep(self.settle_s)
        # Slower is no fault: an idle or capped board may not reach the clock it is locked to.
        runs = int(self._call("nvmlDeviceGetClockInfo", self.nvml.NVML_CLOCK_SM))
        if runs > mhz + _CLOCK_TOLERANCE_MHZ:
            raise _ignored("clock", f"{mhz} MHz", f"{runs} MHz")

    def unlock_clock(self) -> None:
        """Let the board choose its clock; one that cannot lock it does so anyway."""
        try:
            self._call("nvmlDeviceResetGpuLockedClocks")
        except PowerControlError as error:
            if error.value != self.nvml.NVML_ERROR_NOT_SUPPORTED:
                raise

    def _call(self, name: str, *arguments: Any) -> Any:
        try:
            return getattr(self.nvml, name)(self.handle, *arguments)
        except self.nvml.NVMLError as error:
            code = getattr(error, "value", None)
            if code == self.nvml.NVML_ERROR_NO_PERMISSION:
                raise permission_error(name, str(error)) from error
            raise PowerControlError(f"{name}: {error}.", field="power", value=code) from error


def _ignored(what: str, wanted: str, found: str) -> PowerControlError:
    return PowerControlError(
        f"The {what} was set to {wanted}, and the board still says {found}.",
        field="power",
        value=found,
        remedy="The board or its virtualisation ignores the setting; leave it out of the sweep.",
    )
