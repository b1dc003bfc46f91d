"""Chooses the best meter that a device has, and says why the better ones are not there."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args

import torch

from infopt.energy.counters import Counter
from infopt.energy.errors import CounterUnreadableError
from infopt.energy.meters import CounterMeter, EnergyMeter, ModelledMeter, NoMeter, Sync, no_sync
from infopt.energy.model import EnergyConstants
from infopt.energy.nvml import NvmlCounter, NvmlPower, gpu_name, handle_of, load_nvml
from infopt.energy.power_integral import PowerMeter
from infopt.energy.rapl import rapl_counters
from infopt.errors import ConfigError, nearest

logger = logging.getLogger(__name__)

MeterName = Literal["auto", "nvml", "rapl", "power-integral", "modelled", "none"]

Rapl = Callable[[], tuple[list[Counter], dict[str, str]]]


@dataclass(frozen=True, slots=True)
class MeterChoice:
    """A meter, and what was better but is not there.

    Attributes:
        meter: The best there is.
        why_not: Meter -> reason, best first.
    """

    meter: EnergyMeter
    why_not: Mapping[str, str]

    def __str__(self) -> str:
        """Return one line for logs and `infopt doctor`."""
        reasons = "; ".join(f"no {name}: {why}" for name, why in self.why_not.items())
        name = self.meter.source or "none"
        name += " (derived, not measured)" if name == "modelled" else ""
        return f"{name} ({reasons})" if reasons else name


@dataclass(frozen=True, slots=True)
class Probes:
    """How the hardware is reached; tests put imitations here.

    Attributes:
        nvml: Returns the module ``pynvml``, initialised.
        handle: Returns NVML's handle of a device.
        rapl: Returns the counters of the packages, and why others are missing.
        sync: Waits for a device; None: torch's own way.
    """

    nvml: Callable[[], Any] = load_nvml
    handle: Callable[[Any, torch.device], Any] = handle_of
    rapl: Rapl = rapl_counters
    sync: Sync | None = None


def choose_meter(
    device: str | torch.device,
    name: MeterName = "auto",
    *,
    constants: EnergyConstants | None = None,
    probes: Probes | None = None,
) -> MeterChoice:
    """Return the meter to use for a device.

    On a GPU: NVML's energy counter, with the host's RAPL beside it where it can be read; else its
    power, integrated; else none: watts of a GPU are not guessed. On a CPU: RAPL, else modelled.

    Args:
        device: What runs the model.
        name: ``auto``, or the one to use: a name is a demand.
        constants: Of the model.
        probes: How the hardware is reached.

    Raises:
        ConfigError: There is no meter of this name.
        CounterUnreadableError: The one that was named is not available.
    """
    if name not in get_args(MeterName):
        raise ConfigError(
            f"There is no energy meter {name!r}.{nearest(name, get_args(MeterName))}",
            field="energy.meter",
            value=name,
            remedy=f"Meters: {', '.join(get_args(MeterName))}.",
        )
    found = _Search(torch.device(device), constants or EnergyConstants(), probes or Probes())
    if name == "none":
        return MeterChoice(NoMeter("energy metering is off (energy.meter: none)"), {})
    if name != "auto":
        return _demanded(found, name)
    for attempt in found.order():
        meter = found.attempt(attempt)
        if meter is not None:
            return MeterChoice(meter, found.why_not)
    reasons = "; ".join(found.why_not.values())
    return MeterChoice(NoMeter(f"no meter can be read: {reasons}"), found.why_not)


def _demanded(search: _Search, name: MeterName) -> MeterChoice:
    meter = search.attempt(name)
    if meter is None:
        raise CounterUnreadableError(
            f"The energy meter {name!r} is not available: {search.why_not[name]}",
            field="energy.meter",
            value=name,
            remedy="Use `auto`, which takes the best there is and says which.",
        )
    return MeterChoice(meter, {})


class _Search:
    """Tries meters and notes why they cannot be used."""

    def __init__(self, device: torch.device, constants: EnergyConstants, probes: Probes) -> None:
        self._device, self._constants, self._probes = device, constants, probes
        self.why_not: dict[str, str] = {}

    def order(self) -> tuple[MeterName, ...]:
        """Return the meters from best to worst."""
        is_gpu = self._device.type == "cuda"
        return ("nvml", "power-integral") if is_gpu else ("rapl", "modelled")

    def attempt(self, name: MeterName) -> EnergyMeter | None:
        """Return a meter, or None having noted why not."""
        try:
            return {
                "nvml": self._nvml,
                "power-integral": self._power,
                "rapl": self._rapl,
                "modelled": self._modelled,
            }[name]()
        except CounterUnreadableError as error:
            self.why_not[name] = str(error)
            return None

    def _nvml(self) -> EnergyMeter:
        nvml, handle = self._handle()
        gpu = NvmlCounter(nvml, handle, gpu_name(self._device))
        gpu.read_uj()
        packages, missing = self._probes.rapl()
        source = "nvml+rapl" if packages else "nvml"
        return CounterMeter(source, [gpu, *packages], missing, self._sync())

    def _power(self) -> EnergyMeter:
        nvml, handle = self._handle()
        gauge = NvmlPower(nvml, handle, gpu_name(self._device))
        gauge.read_watts()
        missing = {"package": "not sampled beside the power of a GPU"}
        return PowerMeter(gauge, missing=missing, sync=self._sync())

    def _rapl(self) -> EnergyMeter:
        counters, missing = self._probes.rapl()
        if not any(c.name.startswith("package") for c in counters):
            raise CounterUnreadableError("; ".join(missing.values()) or "no package counter")
        return CounterMeter("rapl", counters, missing)

    def _modelled(self) -> EnergyMeter:
        if self._device.type != "cpu":
            raise CounterUnreadableError(
                f"the model is one of CPUs; the watts of {self._device} are not guessed"
            )
        return ModelledMeter(self._constants)

    def _handle(self) -> tuple[Any, Any]:
        if self._device.type != "cuda":
            raise CounterUnreadableError(f"{self._device} is no GPU of NVML's")
        nvml = self._probes.nvml()
        return nvml, self._probes.handle(nvml, self._device)

    def _sync(self) -> Sync:
        if self._probes.sync is not None:
            return self._probes.sync
        if self._device.type != "cuda":
            return no_sync
        return lambda: torch.cuda.synchronize(self._device)
