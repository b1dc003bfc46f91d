"""Quality and cost over the strong model's share: PGR, APGR, CPT, with intervals.

Definitions as in RouteLLM (arXiv 2406.18665). With r(a) the mean quality where the strong model
answers a share a of the prompts, those of highest need:

    PGR(a)  = (r(a) - r(0)) / (r(1) - r(0))      performance gap recovered
    APGR    = area under PGR(a) for a from 0 to 1
    CPT(x)  = smallest a with PGR(a) >= x        call-performance threshold

Prompts of equal need come in random order, in expectation: their stretch of the curve is straight.
So a policy that knows nothing has APGR 0.5. Where the strong model is no better, PGR divides by
nothing; ``lift``, the mean of r(a) above the straight line in points of quality, is always defined,
and APGR = 0.5 + lift / (r(1) - r(0)).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from infopt.errors import ConfigError
from infopt.evals.intervals import Interval
from infopt.select.routing.items import (
    RoutingItem,
    check_items,
    cost_units,
    costs_of,
    needs_of,
    qualities,
)
from infopt.select.routing.policy import PairPolicy

Array = NDArray[np.float64]

SHARES = tuple(round(0.05 * i, 2) for i in range(21))
"""Shares of the strong model at which curves are given."""

TARGETS = (0.5, 0.8)
"""Recovered gaps for which CPT is given."""

_NUM_RESAMPLES = 2000
_MAX_UNDEFINED = 0.025
"""Share of resamples without a gap from which on a ratio has no interval."""


@dataclass(frozen=True, slots=True)
class CurvePoint:
    """What a share of the strong model gives.

    Attributes:
        share: Of the prompts that the strong model answers.
        quality: Mean quality.
        quality_low: Lower end of its 95 % interval.
        quality_high: Upper end.
        pgr: Recovered share of the gap; None where the strong model is no better.
        costs: Mean cost per request by unit.
    """

    share: float
    quality: float
    quality_low: float
    quality_high: float
    pgr: float | None
    costs: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class RoutingCurve:
    """A policy judged on items that it has not seen.

    Attributes:
        policy: Kind of the policy.
        num_items: Prompts it was judged on.
        weak: Mean quality of the cheap model alone.
        strong: Mean quality of the strong model alone.
        lift: Mean quality above a random router of the same share, in points of quality.
        lift_interval: Its 95 % interval (bootstrap over items; None for a single one).
        apgr: Area under PGR; None where the strong model is no better.
        apgr_interval: None also where many resamples have no gap.
        cpt: By target, the smallest share that recovers it; None where there is no gap.
        points: At `SHARES`.
    """

    policy: str
    num_items: int
    weak: float
    strong: float
    lift: float
    lift_interval: Interval | None
    apgr: float | None
    apgr_interval: Interval | None
    cpt: Mapping[float, float | None]
    points: tuple[CurvePoint, ...]

    @property
    def verdict(self) -> str:
        """``better`` or ``worse`` than a random router of the same share, or ``undecided``."""
        interval = self.lift_interval
        if interval is None or interval.low <= 0 <= interval.high:
            return "undecided"
        return "better" if interval.low > 0 else "worse"

    def to_dict(self) -> dict[str, Any]:
        """Return plain data."""
        intervals = {"lift": self.lift_interval, "apgr": self.apgr_interval}
        bounds = {
            f"{name}_{end}": None if interval is None else getattr(interval, end)
            for name, interval in intervals.items()
            for end in ("low", "high")
        }
        return {
            "policy": self.policy,
            "num_items": self.num_items,
            "weak": self.weak,
            "strong": self.strong,
            "lift": self.lift,
            "apgr": self.apgr,
            **bounds,
            "verdict": self.verdict,
            "cpt": {f"{target:g}": share for target, share in self.cpt.items()},
            "points": [
                {name: getattr(point, name) for name in CurvePoint.__slots__}
                | {"costs": dict(point.costs)}
                for point in self.points
            ],
        }


def routing_curve(
    policy: PairPolicy, items: Sequence[RoutingItem], *, seed: int = 0
) -> RoutingCurve:
    """Judge a policy over all thresholds.

    Args:
        policy: Its threshold does not count, its needs do.
        items: Answered by both models, and not those that the policy was trained on.
        seed: Of the resampling.

    Raises:
        ConfigError: If there are no items, or one lacks the quality of a model.
        MeasurementError: If an item lacks what the policy must see.
    """
    check_items(items)
    order = _Order(needs_of(policy, items))
    weak, strong = qualities(items, policy.cheap), qualities(items, policy.strong)
    counts = _resamples(len(items), seed)
    exact = np.ones((1, len(items)))
    qualities_at = order.means_at(SHARES, weak, strong, exact)[0]
    resampled_at = order.means_at(SHARES, weak, strong, counts)
    lift, gap = order.lift(weak, strong, exact), float(np.mean(strong - weak))
    lifts, gaps = order.lift(weak, strong, counts), _weighted_mean(strong - weak, counts)
    has_gap = gap > 0
    costs = {
        unit: order.means_at(SHARES, *_costs(policy, items, unit), exact)[0]
        for unit in cost_units(items, (policy.cheap, policy.strong))
    }
    low, high = np.quantile(resampled_at, (0.025, 0.975), axis=0)
    points = tuple(
        CurvePoint(
            share=share,
            quality=float(qualities_at[i]),
            quality_low=float(low[i]),
            quality_high=float(high[i]),
            pgr=float((qualities_at[i] - weak.mean()) / gap) if has_gap else None,
            costs={unit: float(values[i]) for unit, values in costs.items()},
        )
        for i, share in enumerate(SHARES)
    )
    return RoutingCurve(
        policy=policy.kind,
        num_items=len(items),
        weak=float(weak.mean()),
        strong=float(strong.mean()),
        lift=float(lift[0]),
        lift_interval=_interval(lifts) if len(items) > 1 else None,
        apgr=0.5 + float(lift[0]) / gap if has_gap else None,
        apgr_interval=_ratio_interval(lifts, gaps) if has_gap and len(items) > 1 else None,
        cpt={t: order.first_share(weak, strong, t) if has_gap else None for t in TARGETS},
        points=points,
    )


def share_for(needs: Array, weak: Array, strong: Array, target: float) -> float | None:
    """Return CPT(target): the smallest share of the strong model that recovers ``target``.

    Args:
        needs: Shape (num_items,).
        weak: Quality of each item under the cheap model.
        strong: The same under the strong model.
        target: Share of the gap, from 0 to 1.

    Returns:
        None where the strong model is no better on these items.
    """
    if np.mean(strong - weak) <= 0:
        return None
    return _Order(needs).first_share(weak, strong, target)


def threshold_for(needs: Array, share: float) -> float:
    """Return the lowest threshold that sends at most ``share`` of the items to the strong model.

    Args:
        needs: Of the items, shape (num_items,).
        share: From 0 to 1.

    Raises:
        ConfigError: If ``share`` is out of range, or there are no items.
    """
    if not 0 <= share <= 1:
        raise ConfigError(f"share must be from 0 to 1, got {share!r}.", field="share", value=share)
    if not len(needs):
        raise ConfigError("There are no items.", field="items")
    values, counts = np.unique(needs, return_counts=True)
    parts = counts[::-1].cumsum()[::-1] / len(needs)  # of needs at least this
    fitting = values[parts <= share]
    return float(fitting[0] if len(fitting) else np.nextafter(values[-1], np.inf))


def _costs(policy: PairPolicy, items: Sequence[RoutingItem], unit: str) -> tuple[Array, Array]:
    """Return cost per item if it stays cheap, and if it goes to the strong model."""
    cheap, strong = costs_of(items, policy.cheap, unit), costs_of(items, policy.strong, unit)
    # A cascade has paid for the cheap answer already.
    return cheap, strong + cheap if policy.evidence == "answer" else strong


class _Order:
    """Items from the neediest to the least, in stretches of equal need.

    Args:
        needs: Shape (num_items,).
    """

    def __init__(self, needs: Array) -> None:
        self.order = np.argsort(-needs, kind="stable")
        ordered = needs[self.order]
        self.ends = np.append(np.flatnonzero(np.diff(ordered)), len(needs) - 1)

    def steps(self, weak: Array, strong: Array, counts: Array) -> tuple[Array, Array]:
        """Return shares and mean gains at the ends of stretches, from 0 to 1.

        Args:
            weak: Value of each item if it stays cheap, shape (num_items,).
            strong: The same if it goes to the strong model.
            counts: How often each item occurs, shape (num_samples, num_items).

        Returns:
            Both of shape (num_samples, num_stretches + 1).
        """
        ordered = counts[:, self.order]
        gains = ordered * (strong - weak)[self.order]
        total = ordered.sum(axis=1, keepdims=True)
        zero = np.zeros((len(counts), 1))
        shares = np.hstack([zero, ordered.cumsum(axis=1)[:, self.ends] / total])
        return shares, np.hstack([zero, gains.cumsum(axis=1)[:, self.ends] / total])

    def means_at(self, at: Sequence[float], weak: Array, strong: Array, counts: Array) -> Array:
        """Return the mean value at each share, shape (num_samples, len(at))."""
        shares, gains = self.steps(weak, strong, counts)
        base = _weighted_mean(weak, counts)[:, None]
        rows = [np.interp(at, x, y) for x, y in zip(shares, gains, strict=True)]
        return base + np.stack(rows)

    def lift(self, weak: Array, strong: Array, counts: Array) -> Array:
        """Return the mean gain over all shares above the straight line, shape (num_samples,)."""
        shares, gains = self.steps(weak, strong, counts)
        area = np.sum(np.diff(shares, axis=1) * (gains[:, 1:] + gains[:, :-1]) / 2, axis=1)
        return area - gains[:, -1] / 2

    def first_share(self, weak: Array, strong: Array, target: float) -> float:
        """Return the smallest share whose gain is ``target`` of the whole, by straight lines."""
        shares, gains = (x[0] for x in self.steps(weak, strong, np.ones((1, len(weak)))))
        wanted = target * gains[-1]
        end = int(np.flatnonzero(gains >= wanted - 1e-12)[0])
        if end == 0:
            return 0.0
        part = (wanted - gains[end - 1]) / (gains[end] - gains[end - 1])
        return float(shares[end - 1] + part * (shares[end] - shares[end - 1]))


def _resamples(num_items: int, seed: int) -> Array:
    """Return how often each item occurs in each bootstrap sample."""
    rng = np.random.default_rng(seed)
    even = np.full(num_items, 1 / num_items)
    return rng.multinomial(num_items, even, size=_NUM_RESAMPLES).astype(np.float64)


def _weighted_mean(values: Array, counts: Array) -> Array:
    return counts @ values / counts.sum(axis=1)


def _interval(values: Array) -> Interval:
    low, high = np.quantile(values, (0.025, 0.975))
    return Interval(float(low), float(high))


def _ratio_interval(lifts: Array, gaps: Array) -> Interval | None:
    """Return the interval of APGR; None where the gap itself is in doubt."""
    is_defined = gaps > 0
    if 1 - is_defined.mean() > _MAX_UNDEFINED:
        return None
    return _interval(0.5 + lifts[is_defined] / gaps[is_defined])
