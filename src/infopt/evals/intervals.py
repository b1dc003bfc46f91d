"""Intervals for what the evaluations report: Wilson, bootstrap and paired comparisons."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from infopt.errors import MeasurementError

Z_95 = 1.959963984540054
"""Two-sided 95 % quantile of the normal distribution."""

_NUM_RESAMPLES = 2000


class Interval(NamedTuple):
    """A 95 % interval."""

    low: float
    high: float


def wilson_interval(num_correct: int, num_items: int, z: float = Z_95) -> Interval:
    """Return the Wilson score interval of a proportion.

    (p + z²/2n ± z sqrt(p(1-p)/n + z²/4n²)) / (1 + z²/n), with p = ``num_correct / num_items``. It
    stays inside [0, 1] and is not of zero width when all or none are correct.

    Raises:
        MeasurementError: If the counts are impossible.
    """
    if num_items < 1 or not 0 <= num_correct <= num_items:
        raise MeasurementError(
            f"No interval for {num_correct} correct of {num_items} items.",
            field="num_items",
            value=num_items,
            remedy="Score at least one item.",
        )
    p = num_correct / num_items
    z2n = z * z / num_items
    centre = (p + z2n / 2) / (1 + z2n)
    half = math.sqrt(p * (1 - p) * z2n + z2n * z2n / 4) / (1 + z2n)
    # Rounding may leave 1e-17 where the bound is exactly 0 or 1.
    low = 0.0 if num_correct == 0 else centre - half
    high = 1.0 if num_correct == num_items else centre + half
    return Interval(low, high)


def bootstrap_ratio(
    numerators: np.ndarray, denominators: np.ndarray, *, seed: int = 0
) -> Interval | None:
    """Return the 95 % percentile interval of sum(numerators) / sum(denominators).

    Args:
        numerators: One value per unit (a window), shape (num_units,).
        denominators: The same shape, positive.
        seed: Seed of the resampling.

    Returns:
        The interval, or None where fewer than two units leave nothing to resample.
    """
    num_units = len(numerators)
    if num_units < 2:
        return None
    rng = np.random.default_rng(seed)
    picks = rng.integers(0, num_units, size=(_NUM_RESAMPLES, num_units))
    ratios = numerators[picks].sum(axis=1) / denominators[picks].sum(axis=1)
    low, high = np.quantile(ratios, (0.025, 0.975))
    return Interval(float(low), float(high))


def bootstrap_mean(values: np.ndarray, *, seed: int = 0) -> Interval | None:
    """Return the 95 % percentile interval of a mean (None for fewer than two values)."""
    return bootstrap_ratio(values, np.ones_like(values, dtype=np.float64), seed=seed)


def mcnemar_p_value(num_lost: int, num_gained: int) -> float:
    """Return the exact two-sided McNemar p-value of discordant pairs.

    Under "no difference" each discordant item is lost or gained with probability 1/2, so the
    p-value is the two-sided binomial tail; without discordant items it is 1.
    """
    total = num_lost + num_gained
    tail = sum(math.comb(total, k) for k in range(min(num_lost, num_gained) + 1))
    return min(1.0, 2 * tail / 2**total)


@dataclass(frozen=True, slots=True)
class PairedDifference:
    """A candidate against a reference, item by item.

    Attributes:
        difference: Mean of candidate minus reference.
        low: Lower end of its 95 % interval (bootstrap over items; None for a single one).
        high: Upper end.
        num_lost: Items on which the reference alone is better.
        num_gained: Items on which the candidate alone is better.
        p_value: Exact McNemar test of "no difference".
    """

    difference: float
    low: float | None
    high: float | None
    num_lost: int
    num_gained: int
    p_value: float


def paired_difference(changes: np.ndarray, *, seed: int = 0) -> PairedDifference:
    """Judge the changes of items.

    Args:
        changes: Candidate minus reference, one per item, shape (num_items,).
        seed: Seed of the resampling.
    """
    interval = bootstrap_mean(changes, seed=seed)
    lost, gained = int((changes < 0).sum()), int((changes > 0).sum())
    return PairedDifference(
        difference=float(changes.mean()),
        low=None if interval is None else interval.low,
        high=None if interval is None else interval.high,
        num_lost=lost,
        num_gained=gained,
        p_value=mcnemar_p_value(lost, gained),
    )
