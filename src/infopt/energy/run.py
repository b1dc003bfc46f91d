"""The energy of a load run: its window, and who used it."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from infopt.energy.attribution import (
    Attribution,
    ObservedStep,
    SplitModel,
    StepCollector,
    attribute,
    flop_model,
    time_model,
)
from infopt.energy.choose import MeterChoice
from infopt.energy.reading import EnergyReading
from infopt.engine.stats import StepStats
from infopt.errors import MeasurementError

logger = logging.getLogger(__name__)


@dataclass(slots=True)
class RunEnergy:
    """Energy of one run.

    Attributes:
        reading: Of the whole window.
        account: By request and phase; None without energy.
        why_not: Better meters that are not there, and why.
    """

    reading: EnergyReading = field(default_factory=lambda: EnergyReading.none("not finished"))
    account: Attribution | None = None
    why_not: Mapping[str, str] = field(default_factory=dict)


@contextmanager
def measured_run(
    engine: Any, choice: MeterChoice, bytes_of: Callable[[StepStats], float]
) -> Iterator[RunEnergy]:
    """Measure what happens in the ``with`` block; the result is filled in when it ends.

    Args:
        engine: Whose steps are watched.
        choice: What measures it.
        bytes_of: Counts the bytes of a step.
    """
    collector, result = StepCollector(), RunEnergy(why_not=choice.why_not)
    engine.observers.append(collector)
    window = choice.meter.start()
    try:
        yield result
    finally:
        window.stop()
        engine.observers.remove(collector)
    result.reading = window.reading(sum(bytes_of(s.step) for s in collector.steps))
    if result.reading.joules is not None:
        split = choose_split(collector.steps, engine.runner.model.config)
        seconds = result.reading.seconds
        result.account = attribute(result.reading.joules, seconds, collector.steps, split)


def choose_split(steps: Sequence[ObservedStep], config: Any) -> SplitModel:
    """Return the split by time where the steps show it, else the one by FLOPs; the name says which.

    Args:
        steps: Of a run.
        config: The model's (`ModelConfig`).
    """
    try:
        return time_model(steps)
    except MeasurementError as error:
        logger.debug("energy: mixed steps are split by FLOPs: %s", error.message)
        return flop_model(config)
