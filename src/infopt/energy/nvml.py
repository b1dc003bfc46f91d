"""A GPU's energy and power through NVML (package nvidia-ml-py), imported when asked for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from infopt.energy.counters import unreadable

_INSTALL = "pip install 'infopt[energy]'"


def load_nvml() -> Any:
    """Return the initialised module ``pynvml``.

    Raises:
        CounterUnreadableError: It is not installed, or there is no driver.
    """
    try:
        import pynvml  # pyright: ignore[reportMissingImports, reportMissingModuleSource]
    except ImportError:
        raise unreadable("nvml", "absent", "pynvml is not installed", _INSTALL) from None
    nvml: Any = pynvml
    try:
        nvml.nvmlInit()
    except nvml.NVMLError as error:
        raise unreadable("nvml", "absent", str(error)) from error
    return nvml


def handle_of(nvml: Any, device: torch.device) -> Any:
    """Return NVML's handle of a CUDA device.

    Raises:
        CounterUnreadableError: NVML does not know it.
    """
    try:
        return nvml.nvmlDeviceGetHandleByUUID(device_uuid(device))
    except (nvml.NVMLError, AttributeError, TypeError, RuntimeError, AssertionError) as error:
        raise unreadable(gpu_name(device), "absent", str(error)) from error


def device_uuid(device: torch.device) -> str:
    """Return NVML's name of a device; indices differ where CUDA_VISIBLE_DEVICES is set."""
    uuid = str(torch.cuda.get_device_properties(device).uuid)
    return uuid if uuid.startswith(("GPU-", "MIG-")) else f"GPU-{uuid}"


@dataclass(frozen=True, slots=True)
class NvmlCounter:
    """Total energy since the driver was loaded.

    Attributes:
        nvml: The module.
        handle: NVML's handle of the device.
        name: Domain.
    """

    nvml: Any
    handle: Any
    name: str
    wrap_uj: int | None = None
    update_s: float = 0.1

    def read_uj(self) -> int:
        """Return the count in microjoules (NVML counts millijoules)."""
        try:
            return int(self.nvml.nvmlDeviceGetTotalEnergyConsumption(self.handle)) * 1000
        except self.nvml.NVMLError as error:
            raise unreadable(self.name, _kind(self.nvml, error), str(error)) from error


@dataclass(frozen=True, slots=True)
class NvmlPower:
    """Power at this moment, for boards without an energy counter.

    Attributes:
        nvml: The module.
        handle: NVML's handle of the device.
        name: Domain.
    """

    nvml: Any
    handle: Any
    name: str

    def read_watts(self) -> float:
        """Return the power in watts.

        Raises:
            CounterUnreadableError: The board does not tell.
        """
        try:
            return self.nvml.nvmlDeviceGetPowerUsage(self.handle) / 1e3
        except self.nvml.NVMLError as error:
            raise unreadable(self.name, _kind(self.nvml, error), str(error)) from error


def gpu_name(device: torch.device) -> str:
    """Return the domain of a CUDA device."""
    return f"gpu-{device.index or 0}"


def _kind(nvml: Any, error: Any) -> str:
    """Return ``permission``, ``unsupported`` or ``absent`` for one of NVML's errors."""
    code = getattr(error, "value", None)
    if code == getattr(nvml, "NVML_ERROR_NO_PERMISSION", 4):
        return "permission"
    return "unsupported" if code == getattr(nvml, "NVML_ERROR_NOT_SUPPORTED", 3) else "absent"
