"""Energy of a GPU while something runs on it, without its host."""

from __future__ import annotations

from collections.abc import Callable

import torch

from infopt.energy.choose import Probes, choose_meter

_GPU_ALONE = Probes(rapl=lambda: ([], {"package": "left out"}))


def joules_of(function: Callable[[], object], device: torch.device) -> tuple[float | None, str]:
    """Run a function; return the joules that the device took meanwhile, and their source.

    Without a counter the energy is None and the second value says why.
    """
    if device.type != "cuda":
        function()
        return None, "no GPU"
    window = choose_meter(device, probes=_GPU_ALONE).meter.start()
    function()
    window.stop()
    reading = window.reading()
    return reading.joules, reading.source or reading.reason or "no energy"
