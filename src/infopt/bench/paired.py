"""The paired protocol: arms take turns, so that a drifting machine drifts for all of them.

>>> result = run_paired({"static": run_a, "continuous": run_b}, "static", repeats=8)
>>> result.ratios["continuous"].verdict
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from infopt.bench.stats import Interval, PairedRatio, bootstrap_interval, paired_ratio
from infopt.errors import MeasurementError, nearest


@dataclass(frozen=True, slots=True)
class PairedResult:
    """Samples of all arms, and each candidate's ratio to the reference.

    Attributes:
        reference: Name of the reference arm.
        samples: One number per repeat for each arm; equal positions belong together.
        warmup: Numbers of the warm-up rounds, which nothing else uses.
        ratios: Candidate / reference for every other arm.
        higher_is_better: How the ratios were judged.
    """

    reference: str
    samples: dict[str, list[float]]
    warmup: dict[str, list[float]]
    ratios: dict[str, PairedRatio]
    higher_is_better: bool

    def interval(self, arm: str) -> Interval:
        """Return an arm's own median with its 95 % interval."""
        return bootstrap_interval(self.samples[arm])

    def to_dict(self) -> dict[str, Any]:
        """Return plain data for a result record."""
        return {
            "reference": self.reference,
            "higher_is_better": self.higher_is_better,
            "samples": self.samples,
            "ratios": {name: ratio.to_dict() for name, ratio in self.ratios.items()},
        }


def run_paired(
    arms: Mapping[str, Callable[[], float]],
    reference: str,
    repeats: int,
    *,
    num_warmup: int = 1,
    higher_is_better: bool = True,
    before_each: Callable[[str], None] | None = None,
    seed: int = 0,
) -> PairedResult:
    """Measure arms alternately and compare each with the reference.

    The order is turned round in every other repeat (A B, B A, A B, ...): what comes second, or
    later while the machine warms up, is not always the same arm.

    Args:
        arms: Name -> function that measures once and returns a positive number.
        reference: Which arm the others are divided by.
        repeats: Measured rounds; ``stats.MIN_PAIRS_FOR_VERDICT`` or more for a verdict.
        num_warmup: Rounds before them whose numbers are not used.
        higher_is_better: True for rates, False for durations, energies and sizes.
        before_each: Called with the arm's name before each measurement, outside what it times (to
            reset caches, say).
        seed: Seed of the bootstrap.

    Raises:
        MeasurementError: Unknown reference, no repeats, or a number that is not positive.
    """
    if reference not in arms:
        raise MeasurementError(
            f"The reference {reference!r} is not an arm.{nearest(reference, arms)}",
            field="reference",
            value=reference,
            remedy=f"Arms: {', '.join(arms)}.",
        )
    if repeats < 1 or num_warmup < 0:
        raise MeasurementError(
            f"A paired run needs repeats >= 1 and num_warmup >= 0, got {repeats}, {num_warmup}.",
            field="repeats",
            value=repeats,
        )
    warmup = _rounds(arms, num_warmup, before_each)
    samples = _rounds(arms, repeats, before_each)
    ratios = {
        name: paired_ratio(
            samples[reference], samples[name], higher_is_better=higher_is_better, seed=seed
        )
        for name in arms
        if name != reference
    }
    return PairedResult(reference, samples, warmup, ratios, higher_is_better)


def _rounds(
    arms: Mapping[str, Callable[[], float]],
    count: int,
    before_each: Callable[[str], None] | None,
) -> dict[str, list[float]]:
    samples: dict[str, list[float]] = {name: [] for name in arms}
    for index in range(count):
        names = list(arms) if index % 2 == 0 else list(arms)[::-1]
        for name in names:
            if before_each is not None:
                before_each(name)
            samples[name].append(float(arms[name]()))
    return samples
