"""Energy of a server: one ledger for all models, whose entries travel with the answers."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from typing import Any

from prometheus_client.core import CounterMetricFamily, Metric
from prometheus_client.registry import Collector

from infopt.bench.step_cost import engine_precision, step_bytes
from infopt.energy import NJ_PER_J, EnergyConstants, EnergyLedger, choose_meter, flop_model
from infopt.engine.engine import Engine
from infopt.engine.stats import StepStats
from infopt.serve.deltas import EnergyUse
from infopt.yaml_input import read_yaml

logger = logging.getLogger(__name__)

OFF = "energy is not metered; start the server with --energy auto"

_SETTLE_S: Mapping[str | None, float] = {"modelled": 0.0, "rapl": 0.0}
"""Meters that are read after every step; counters of GPUs are renewed ten times a second."""
_SLOW_S = 0.5


class EnergyBook:
    """What a server knows about its energy.

    Args:
        engines: By model name; they are watched from now on.
        meter: Name of the meter; ``none`` watches nothing.
        constants: Of the modelled energy; default: those of the literature.

    Raises:
        CounterUnreadableError: The meter that was named is not available.
    """

    def __init__(
        self,
        engines: Mapping[str, Engine],
        meter: str,
        constants: EnergyConstants | None = None,
    ) -> None:
        """Choose the meter and put an observer into every engine."""
        self.source: str | None = None
        self.ledger: EnergyLedger | None = None
        self._reason = OFF
        if meter == "none":
            return
        device = next(iter(engines.values())).runner.device
        choice = choose_meter(device, meter, constants=constants)  # type: ignore[arg-type]
        logger.info("energy: %s", choice)
        self.source = choice.meter.source
        self.ledger = EnergyLedger(choice.meter, _SETTLE_S.get(self.source, _SLOW_S))
        for name, engine in engines.items():
            engine.observers.append(_observer(self.ledger, name, engine))

    @property
    def is_derived(self) -> bool:
        """Whether energies are computed from constants instead of measured."""
        return self.source == "modelled"

    def take(self, model: str, request_id: str) -> EnergyUse:
        """Close the account of a request that has ended; on the model loop's thread."""
        if self.ledger is None:
            return EnergyUse(None, None, self._reason)
        energy, reason = self.ledger.take(model, request_id)
        if energy is None:
            return EnergyUse(None, None, reason)
        return EnergyUse(energy.prefill_nj / NJ_PER_J, energy.decode_nj / NJ_PER_J, reason)

    def reset(self) -> None:
        """Start counting anew; on the model loop's thread."""
        if self.ledger is not None:
            self.ledger.reset()

    def forget(self, model: str) -> None:
        """Close the accounts of all requests of a model that failed."""
        if self.ledger is not None:
            self.ledger.forget(model)

    def usage(self, uses: Iterable[EnergyUse]) -> dict[str, Any]:
        """Return the ``energy`` object of a usage; a prompt without energy leaves the sum without.

        Args:
            uses: One per prompt.
        """
        uses = list(uses)
        parts = [(u.prefill_joules, u.decode_joules) for u in uses]
        known = [(p, d) for p, d in parts if p is not None and d is not None]
        reason = next((u.reason for u in uses if u.reason is not None), None)
        if len(known) < len(parts) or not known:
            nothing = dict.fromkeys(("joules", "prefill_joules", "decode_joules"))
            return {**nothing, **self._origin(), "reason": reason or self._reason}
        prefill, decode = sum(p for p, _ in known), sum(d for _, d in known)
        return {
            "joules": prefill + decode,
            "prefill_joules": prefill,
            "decode_joules": decode,
            **self._origin(),
            "reason": reason,
        }

    def _origin(self) -> dict[str, Any]:
        return {"source": self.source, "derived": self.is_derived}


def read_constants(path: str | None) -> EnergyConstants:
    """Return the constants in a YAML file, or the default ones without a file.

    Raises:
        ConfigError: There is no such file, it is no mapping, or a constant is impossible.
    """
    if path is None:
        return EnergyConstants()
    remedy = "Give a YAML file with idle_w_per_core, busy_w_per_core or dram_pj_per_byte."
    values = read_yaml(path, field="energy_constants", remedy=remedy)
    return EnergyConstants.from_dict(values)


class EnergyCollector(Collector):
    """Reads the book when ``/metrics`` is asked for."""

    def __init__(self, book: EnergyBook) -> None:
        """Keep the book."""
        self._book = book

    def collect(self) -> Iterable[Metric]:
        """Return the totals; nothing where energy is not metered."""
        ledger, source = self._book.ledger, self._book.source or "none"
        if ledger is None:
            return
        used = CounterMetricFamily(
            "infopt_energy_joules", "Energy of steps.", labels=("model", "phase", "source")
        )
        for name, total in list(ledger.models.items()):
            used.add_metric((name, "prefill", source), total.prefill_nj / NJ_PER_J)
            used.add_metric((name, "decode", source), total.decode_nj / NJ_PER_J)
        yield used
        idle = CounterMetricFamily(
            "infopt_energy_idle_joules", "Energy between steps.", labels=("source",)
        )
        idle.add_metric((source,), ledger.idle_nj / NJ_PER_J)
        yield idle
        lost = CounterMetricFamily(
            "infopt_energy_lost_windows", "Windows whose energy could not be read."
        )
        lost.add_metric((), ledger.num_lost_windows)
        yield lost
        if self._book.is_derived:
            yield _ranges(ledger)


def _ranges(ledger: EnergyLedger) -> Metric:
    family = CounterMetricFamily(
        "infopt_energy_range_joules",
        "All derived energy with the constants of the model at an end of their ranges.",
        labels=("end",),
    )
    for end, value in zip(("low", "high"), ledger.range_j, strict=True):
        family.add_metric((end,), value)
    return family


def _observer(ledger: EnergyLedger, name: str, engine: Engine) -> Any:
    config = engine.runner.model.config
    precision = engine_precision(engine.describe())

    def bytes_of(step: StepStats) -> float:
        return step_bytes(step, config, precision)

    return ledger.observer(name, flop_model(config), bytes_of)
