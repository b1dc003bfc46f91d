"""Arrival processes: when requests are sent, in seconds from the start; the first is at 0.

Written as plain data in configurations: ``"all-at-once"`` or ``{"kind": "poisson", "rate": 4}``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from infopt.bench.options import call_with_options, check_count, check_positive
from infopt.registry import Registry

ArrivalSpec = str | Mapping[str, Any]
ARRIVALS: Registry[Callable[..., NDArray[np.float64]]] = Registry("arrival process")


def arrival_times(spec: ArrivalSpec, count: int, rng: np.random.Generator) -> list[float]:
    """Return ``count`` arrival times in seconds, in order, the first at 0.

    Args:
        spec: A kind or ``{"kind": ..., **options}``.
        count: How many.
        rng: Source of randomness; the same seed gives the same schedule.

    Raises:
        ConfigError: Unknown kind or option (with the nearest valid name).
        WorkloadError: Impossible value.
    """
    gaps = call_with_options(ARRIVALS, spec, count, rng)
    if count == 0:
        return []
    return np.concatenate([[0.0], np.cumsum(gaps[: count - 1])]).tolist()


@ARRIVALS.register("all-at-once")
def all_at_once(count: int, rng: np.random.Generator) -> NDArray[np.float64]:
    """Everything arrives at 0."""
    del rng
    return np.zeros(count)


@ARRIVALS.register("constant")
def constant(count: int, rng: np.random.Generator, *, rate: float) -> NDArray[np.float64]:
    """Equal gaps of ``1 / rate`` seconds."""
    del rng
    return np.full(count, 1 / check_positive("rate", rate))


@ARRIVALS.register("poisson")
def poisson(count: int, rng: np.random.Generator, *, rate: float) -> NDArray[np.float64]:
    """Exponential gaps with mean ``1 / rate`` seconds: independent users."""
    return rng.exponential(1 / check_positive("rate", rate), size=count)


@ARRIVALS.register("gamma")
def gamma(count: int, rng: np.random.Generator, *, rate: float, cv: float) -> NDArray[np.float64]:
    """Gamma gaps with mean ``1 / rate`` and coefficient of variation ``cv`` (1 is Poisson)."""
    shape = 1 / check_positive("cv", cv) ** 2
    return rng.gamma(shape, 1 / (check_positive("rate", rate) * shape), size=count)


@ARRIVALS.register("burst")
def burst(
    count: int, rng: np.random.Generator, *, rate: float, burst_size: int
) -> NDArray[np.float64]:
    """Groups of ``burst_size`` at the same moment, equally spaced, ``rate`` requests/s in all."""
    del rng
    check_count("burst_size", burst_size)
    gaps = np.zeros(count)
    gaps[burst_size - 1 :: burst_size] = burst_size / check_positive("rate", rate)
    return gaps
