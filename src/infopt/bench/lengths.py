"""Distributions of prompt and output lengths, written as plain data in configurations.

A length is a whole number (every request alike) or a mapping such as
``{"kind": "lognormal", "median": 200, "sigma": 0.8, "min": 16, "max": 1024}``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from infopt.bench.options import call_with_options, check_count, check_positive
from infopt.errors import WorkloadError
from infopt.registry import Registry

LengthSpec = int | Mapping[str, Any]
LENGTHS: Registry[Callable[..., NDArray[np.float64]]] = Registry("length distribution")


def sample_lengths(spec: LengthSpec, count: int, rng: np.random.Generator) -> list[int]:
    """Draw ``count`` lengths in tokens (whole numbers >= 1).

    Args:
        spec: A number or ``{"kind": ..., **options}``.
        count: How many.
        rng: Source of randomness.

    Raises:
        ConfigError: Unknown kind or option (with the nearest valid name).
        WorkloadError: Impossible value.
    """
    if isinstance(spec, int):
        spec = {"kind": "constant", "value": spec}
    values = call_with_options(LENGTHS, spec, count, rng)
    return [max(round(float(v)), 1) for v in values]


@LENGTHS.register("constant")
def constant(count: int, rng: np.random.Generator, *, value: int) -> NDArray[np.float64]:
    """Every length is ``value``."""
    del rng
    check_count("value", value)
    return np.full(count, float(value))


@LENGTHS.register("uniform")
def uniform(count: int, rng: np.random.Generator, *, min: int, max: int) -> NDArray[np.float64]:
    """Whole numbers from ``min`` to ``max``, both included, equally likely."""
    _check_range(min, max)
    return rng.integers(min, max + 1, size=count).astype(np.float64)


@LENGTHS.register("lognormal")
def lognormal(
    count: int, rng: np.random.Generator, *, median: float, sigma: float, min: int, max: int
) -> NDArray[np.float64]:
    """Lognormal around ``median`` with shape ``sigma``, clipped to [min, max]."""
    _check_range(min, max)
    check_positive("median", median)
    check_positive("sigma", sigma)
    return np.clip(median * np.exp(sigma * rng.standard_normal(count)), min, max)


@LENGTHS.register("zipf")
def zipf(
    count: int, rng: np.random.Generator, *, alpha: float, min: int, max: int
) -> NDArray[np.float64]:
    """Heavy-tailed: the probability of length k in [min, max] falls as k ** -alpha."""
    _check_range(min, max)
    check_positive("alpha", alpha)
    support = np.arange(min, max + 1, dtype=np.float64)
    weights = support**-alpha
    return rng.choice(support, size=count, p=weights / weights.sum())


def _check_range(low: int, high: int) -> None:
    check_count("min", low)
    check_count("max", high)
    if low > high:
        raise WorkloadError(
            f"A length's min={low} is above its max={high}.", field="min", value=low
        )
