"""Statistics of measurements: percentiles that refuse small samples, intervals, paired ratios.

Everything here is seeded and pure: the same samples give the same interval.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from statistics import NormalDist
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from infopt.errors import MeasurementError

Verdict = Literal["better", "worse", "undecided"]

MIN_PAIRS_FOR_VERDICT = 6
"""Fewer pairs are always ``undecided``.

Five pairs fall on the same side of 1 by chance in 1 of 16 experiments, which no 95 % interval may
call a win; six do in 1 of 32.
"""

_NUM_RESAMPLES = 2000


@dataclass(frozen=True, slots=True)
class Interval:
    """An estimate with its confidence interval.

    Attributes:
        estimate: The statistic of the sample.
        low: Lower end.
        high: Upper end.
        count: Sample size.
    """

    estimate: float
    low: float
    high: float
    count: int

    def to_dict(self) -> dict[str, Any]:
        """Return plain data for a result record."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class PairedRatio:
    """Candidate / reference, pair by pair.

    Attributes:
        median: Median of the ratios.
        low: Lower end of its 95 % interval.
        high: Upper end of its 95 % interval.
        num_pairs: Number of pairs.
        verdict: ``undecided`` where the interval straddles 1 or there are fewer than
            ``MIN_PAIRS_FOR_VERDICT`` pairs.
    """

    median: float
    low: float
    high: float
    num_pairs: int
    verdict: Verdict

    def to_dict(self) -> dict[str, Any]:
        """Return plain data for a result record."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class Percentiles:
    """Percentiles of a sample, in the unit of the sample.

    A percentile is None where the sample is too small for it: percentile p of n samples needs
    n * (100 - p) / 100 >= 1, that is at least one expected sample beyond it (p50: 2 samples,
    p90: 10, p99: 100). Between order statistics the value is interpolated linearly.
    """

    p50: float | None
    p90: float | None
    p99: float | None
    mean: float | None
    count: int

    def to_dict(self) -> dict[str, float | int | None]:
        """Return plain data."""
        return {
            "p50": self.p50,
            "p90": self.p90,
            "p99": self.p99,
            "mean": self.mean,
            "count": self.count,
        }


def percentile(samples: Sequence[float], percent: float) -> float | None:
    """Return one percentile, or None if the sample is too small for it (see `Percentiles`).

    Args:
        samples: Finite numbers.
        percent: In [0, 100).
    """
    _check_finite(samples, "samples")
    if not 0 <= percent < 100:
        raise MeasurementError(
            f"percent must be in [0, 100), got {percent!r}.", field="percent", value=percent
        )
    # The tolerance absorbs the rounding of 100 - 99.9 and its like.
    if len(samples) * (100 - percent) < 100 - 1e-9:
        return None
    return float(np.percentile(np.asarray(samples, dtype=np.float64), percent))


def percentiles(samples: Sequence[float]) -> Percentiles:
    """Return p50, p90, p99 and mean; None for what the sample is too small for."""
    return Percentiles(
        p50=percentile(samples, 50),
        p90=percentile(samples, 90),
        p99=percentile(samples, 99),
        mean=float(np.mean(samples)) if len(samples) else None,
        count=len(samples),
    )


def bootstrap_interval(
    samples: Sequence[float],
    statistic: Callable[..., NDArray[np.float64]] = np.median,
    *,
    confidence: float = 0.95,
    num_resamples: int = _NUM_RESAMPLES,
    seed: int = 0,
) -> Interval:
    """Return the expanded percentile bootstrap interval of a statistic.

    The plain percentile interval is too narrow for small samples (measured for the median: it
    misses the truth in 6 to 12 % of cases at 6 to 12 samples instead of 5 %). Hesterberg's
    expansion (arXiv 1411.5279) reads the bootstrap distribution further out, at
    Phi(-sqrt(n / (n - 1)) * t_{n-1}), and misses in 2 to 4 %.

    Args:
        samples: At least one finite number.
        statistic: A function of ``(array, axis=...)``, such as ``np.median`` or ``np.mean``.
        confidence: In (0, 1).
        num_resamples: Number of bootstrap samples.
        seed: Makes the interval reproducible.

    Raises:
        MeasurementError: If there are no samples or one is not finite.
    """
    _check_finite(samples, "samples", minimum=1)
    _check_confidence(confidence)
    values = np.asarray(samples, dtype=np.float64)
    count = len(values)
    rng = np.random.default_rng(seed)
    resampled = values[rng.integers(0, count, size=(num_resamples, count))]
    tail = _expanded_tail(count, confidence)
    low, high = np.quantile(statistic(resampled, axis=1), [tail, 1 - tail])
    return Interval(float(statistic(values, axis=0)), float(low), float(high), count)


def paired_ratio(
    reference: Sequence[float],
    candidate: Sequence[float],
    *,
    higher_is_better: bool,
    seed: int = 0,
) -> PairedRatio:
    """Compare two arms measured alternately: sample i of each belongs to the same moment.

    Args:
        reference: Measurements of the reference (positive numbers).
        candidate: Measurements of the candidate, same length and order.
        higher_is_better: True for rates, False for durations, energies and sizes.
        seed: Seed of the bootstrap.

    Raises:
        MeasurementError: If lengths differ, or a value is not a positive finite number.
    """
    if len(reference) != len(candidate):
        raise MeasurementError(
            f"A paired ratio needs as many candidate as reference samples, got {len(candidate)} "
            f"and {len(reference)}.",
            field="candidate",
            value=len(candidate),
            remedy="Measure the arms alternately and keep both samples of each pair.",
        )
    _check_finite(reference, "reference", minimum=1, positive=True)
    _check_finite(candidate, "candidate", minimum=1, positive=True)
    ratios = np.asarray(candidate, dtype=np.float64) / np.asarray(reference, dtype=np.float64)
    interval = bootstrap_interval(ratios.tolist(), seed=seed)
    verdict = _verdict(interval, higher_is_better)
    return PairedRatio(interval.estimate, interval.low, interval.high, len(ratios), verdict)


def proportion_interval(successes: int, n: int, *, confidence: float = 0.95) -> Interval:
    """Return a proportion with its Wilson interval (sound near 0 and 1 and for small n).

    Args:
        successes: Number of successes, 0 to n.
        n: Number of trials, at least 1.
        confidence: In (0, 1).
    """
    if n < 1 or not 0 <= successes <= n:
        raise MeasurementError(
            f"A proportion needs n >= 1 and 0 <= successes <= n, got {successes} of {n}.",
            field="successes",
            value=successes,
        )
    _check_confidence(confidence)
    z = NormalDist().inv_cdf(0.5 + confidence / 2)
    share = successes / n
    centre = (share + z * z / (2 * n)) / (1 + z * z / n)
    margin = z / (1 + z * z / n) * math.sqrt(share * (1 - share) / n + z * z / (4 * n * n))
    # The ends are exactly 0 and 1 at 0 and n successes; rounding must not move them.
    low = 0.0 if successes == 0 else centre - margin
    high = 1.0 if successes == n else centre + margin
    return Interval(share, low, high, n)


def _verdict(interval: Interval, higher_is_better: bool) -> Verdict:
    if interval.count < MIN_PAIRS_FOR_VERDICT or interval.low <= 1 <= interval.high:
        return "undecided"
    return "better" if (interval.low > 1) == higher_is_better else "worse"


def _expanded_tail(count: int, confidence: float) -> float:
    normal = NormalDist()
    z = normal.inv_cdf(0.5 + confidence / 2)
    if count < 2:
        return 1 - normal.cdf(z)
    return normal.cdf(-math.sqrt(count / (count - 1)) * _student_t_quantile(z, count - 1))


def _student_t_quantile(z: float, df: int) -> float:
    """Return Student's t quantile for the normal quantile z (Cornish-Fisher, 3 terms).

    Off by under 0.3 % from 4 degrees of freedom on. Below, it is short of the true value, but so
    few samples give nearly their whole range anyway.
    """
    g1 = (z**3 + z) / 4
    g2 = (5 * z**5 + 16 * z**3 + 3 * z) / 96
    g3 = (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384
    return z + g1 / df + g2 / df**2 + g3 / df**3


def _check_confidence(confidence: float) -> None:
    if not 0 < confidence < 1:
        raise MeasurementError(
            f"confidence must be between 0 and 1, got {confidence!r}.",
            field="confidence",
            value=confidence,
            remedy="Write 95 % as 0.95.",
        )


def _check_finite(
    samples: Sequence[float], name: str, *, minimum: int = 0, positive: bool = False
) -> None:
    if len(samples) < minimum:
        raise MeasurementError(f"{name} is empty.", field=name, remedy="Measure at least once.")
    for index, value in enumerate(samples):
        if not math.isfinite(value) or (positive and value <= 0):
            kind = "positive finite" if positive else "finite"
            raise MeasurementError(
                f"{name}[{index}] is {value!r}, not a {kind} number.", field=name, value=value
            )
