"""Energy of a GPU from NVML's counter, where pynvml is installed and the counter can be read."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch


def joules_of(function: Callable[[], object], device: torch.device) -> tuple[float | None, str]:
    """Run a function; return the joules that the device took meanwhile, and their source.

    Without a counter the energy is None and the second value says why.
    """
    counter = _counter(device)
    if isinstance(counter, str):
        function()
        return None, counter
    torch.cuda.synchronize()
    before = counter()
    function()
    torch.cuda.synchronize()
    used = counter() - before
    if used <= 0:
        return None, "the counter did not advance"
    return used / 1e3, "NVML total energy"


def _counter(device: torch.device) -> Callable[[], int] | str:
    """Return a function that reads millijoules, or why there is none."""
    if device.type != "cuda":
        return "no GPU"
    try:
        import pynvml  # pyright: ignore[reportMissingImports, reportMissingModuleSource]
    except ImportError:
        return "pynvml is not installed"
    nvml: Any = pynvml
    try:
        nvml.nvmlInit()
        handle = nvml.nvmlDeviceGetHandleByUUID(_uuid(device))
        nvml.nvmlDeviceGetTotalEnergyConsumption(handle)
    except (nvml.NVMLError, AttributeError, TypeError) as error:
        return f"NVML cannot be read: {error}"
    return lambda: nvml.nvmlDeviceGetTotalEnergyConsumption(handle)


def _uuid(device: torch.device) -> str:
    """Return NVML's name of a device; indices differ where CUDA_VISIBLE_DEVICES is set."""
    uuid = str(torch.cuda.get_device_properties(device).uuid)
    return uuid if uuid.startswith(("GPU-", "MIG-")) else f"GPU-{uuid}"
