"""Whether techniques get in each other's way: the composition against the parts it is made of.

If techniques did not touch each other, the gain of all of them together would be the product of
what each is worth in the composition, and the quality lost the sum. A whole that gains more than
this product is made of techniques that overlap: taking one back costs little, because the others
make up for it. One that gains less is made of techniques that need each other. Speed: the product
comes from paired ratios, its interval from theirs on the log scale. Quality: the loss of a
technique is the divergence of the composition less that of the run without it; if these add up to
more than the divergence of the composition, two techniques together lose more than each alone.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from infopt.results.metrics import metric_of
from infopt.select.ablation import Effect, worth_interval
from infopt.select.changes import ratio_interval
from infopt.select.rows import Row, number

InteractionVerdict = Literal["more", "less", "undecided"]

SPEED_COLUMNS = ("throughput.output_tokens_per_s", "latency.ttft_s.p50", "latency.tpot_s.p50")
_KL = "quality.kl_mean"
_KL_NOISE_NATS = 1e-4


@dataclass(frozen=True, slots=True)
class Interaction:
    """One axis: what came out against what the parts let expect.

    Attributes:
        column: The axis.
        expected: Product of the worths (speed, times) or sum of the losses (quality, nats).
        observed: The composition against everything at its reference (times), or its loss (nats).
        low, high: 95 % interval of observed / expected; None for quality.
        verdict: ``more``: the whole gains (or loses) more than its parts; ``less``; ``undecided``
            where the interval contains 1.
        message: The whole in a sentence.
    """

    column: str
    expected: float
    observed: float
    low: float | None
    high: float | None
    verdict: InteractionVerdict
    message: str


def interactions(
    composed: Row, unoptimized: Row | None, effects: Sequence[Effect]
) -> tuple[Interaction, ...]:
    """Return how the composition differs from its parts.

    Args:
        composed: The row of the composition.
        unoptimized: The row with every option at its reference, paired with the composition.
        effects: From ``ablation``; fewer than two techniques have nothing to interact.
    """
    if len({e.technique for e in effects}) < 2:
        return ()
    columns = SPEED_COLUMNS if unoptimized is not None else ()
    found = [_speed(composed, unoptimized or {}, effects, column) for column in columns]
    return tuple(i for i in [*found, _quality(composed, effects)] if i is not None)


def _speed(
    composed: Row, unoptimized: Row, effects: Sequence[Effect], column: str
) -> Interaction | None:
    whole = worth_interval(composed, unoptimized, column)
    parts = [_interval(e) for e in effects if e.column == column]
    known = [part for part in parts if part is not None]
    if whole is None or not known or len(known) < len(parts):
        return None
    product = _product(known)
    low, high = ratio_interval(product, whole)
    verdict: InteractionVerdict = "undecided" if low <= 1 <= high else "more" if low > 1 else "less"
    label = metric_of(column).label
    words = {
        "more": "they overlap: where one is missing, the others make up for part of it",
        "less": "they need each other: alone, each is worth less than beside the others",
        "undecided": "which the intervals cannot tell apart",
    }
    message = (
        f"{label}: all techniques together are worth {whole[0]:.3g}x, the product of what each is "
        f"worth in the composition is {product[0]:.3g}x: {words[verdict]}."
    )
    return Interaction(column, product[0], whole[0], low, high, verdict, message)


def _quality(composed: Row, effects: Sequence[Effect]) -> Interaction | None:
    observed = number(composed, _KL)
    losses = {e.technique: e.composed - e.without for e in effects if e.column == _KL}
    lossy = {name: loss for name, loss in losses.items() if loss > _KL_NOISE_NATS}
    if observed is None or len(lossy) < 2:
        return None
    expected = sum(lossy.values())
    # Losses inside the composition that exceed it: each technique loses more beside the other.
    verdict: InteractionVerdict = "undecided"
    if abs(expected - observed) > _KL_NOISE_NATS:
        verdict = "more" if expected > observed else "less"
    words = {
        "more": "together they lose more than the sum of what each loses alone",
        "less": "together they lose less than the sum of what each loses alone",
        "undecided": "together they lose the sum of what each loses alone",
    }
    names = " and ".join(lossy)
    message = (
        f"Quality: {names} take {expected:.3g} nats one by one from a composition that is "
        f"{observed:.3g} nats from the reference: {words[verdict]}."
    )
    return Interaction(_KL, expected, observed, None, None, verdict, message)


def _interval(effect: Effect) -> tuple[float, float, float] | None:
    if effect.worth is None or effect.low is None or effect.high is None:
        return None
    return effect.worth, effect.low, effect.high


def _product(parts: Sequence[tuple[float, float, float]]) -> tuple[float, float, float]:
    """Return the product with its interval: half-widths on the log scale add in quadrature."""
    middle = sum(math.log(p[0]) for p in parts)
    below = math.hypot(*(math.log(p[0] / p[1]) for p in parts))
    above = math.hypot(*(math.log(p[2] / p[0]) for p in parts))
    return math.exp(middle), math.exp(middle - below), math.exp(middle + above)
