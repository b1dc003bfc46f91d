"""Turns the engine's step log on for the time of a run."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from infopt.bench.driver import DrivenEngine
from infopt.engine.stats import StepStats


@contextmanager
def recorded_steps(engine: DrivenEngine) -> Iterator[list[StepStats]]:
    """Collect the engine's steps; a log that was on before gets them as well.

    Args:
        engine: Its ``step_log`` is replaced inside the block and restored after it.
    """
    before = engine.step_log
    steps: list[StepStats] = []
    engine.step_log = steps
    try:
        yield steps
    finally:
        if before is not None:
            before.extend(steps)
        engine.step_log = before
