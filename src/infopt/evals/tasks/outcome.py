"""What a task returns, and how two runs of one task compare."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from infopt.errors import MeasurementError
from infopt.evals.intervals import PairedDifference, paired_difference, wilson_interval


@dataclass(frozen=True, slots=True)
class ItemOutcome:
    """One item.

    Attributes:
        item_id: Name of the item; equal in every run with the same seed.
        correct: Whether the answer was right.
        prediction: What the model chose or wrote.
        answer: What was right.
        margin: Normalised log-probability of the answer minus that of the best wrong choice, in
            nats (None where answers are generated). It moves long before an answer flips.
    """

    item_id: str
    correct: bool
    prediction: str
    answer: str
    margin: float | None = None


@dataclass(frozen=True, slots=True)
class TaskResult:
    """All items of a task.

    Attributes:
        task: Name of the task.
        protocol: How it was run; results with different protocols do not compare.
        outcomes: One per item.
    """

    task: str
    protocol: str
    outcomes: tuple[ItemOutcome, ...]

    @property
    def score(self) -> float:
        """Share of correct items."""
        return sum(outcome.correct for outcome in self.outcomes) / len(self.outcomes)

    def to_dict(self, *, with_items: bool = False) -> dict[str, Any]:
        """Return plain data: score, its 95 % Wilson interval, number of items.

        Args:
            with_items: Add ``items``, 1 or 0 by item, for paired comparison.
        """
        num_items = len(self.outcomes)
        interval = wilson_interval(sum(o.correct for o in self.outcomes), num_items)
        data: dict[str, Any] = {
            "score": self.score,
            "low": interval.low,
            "high": interval.high,
            "n": num_items,
        }
        if with_items:
            data["items"] = {outcome.item_id: int(outcome.correct) for outcome in self.outcomes}
        return data


@dataclass(frozen=True, slots=True)
class PairedTask(PairedDifference):
    """Two runs of a task, item by item: the score of the candidate less that of the reference.

    Attributes:
        margin_change: Mean change of the margin in nats (None for generated answers).
    """

    margin_change: float | None


def compare_outcomes(reference: TaskResult, candidate: TaskResult, *, seed: int = 0) -> PairedTask:
    """Compare a candidate with a reference on the same items.

    Args:
        reference: The reference's result.
        candidate: The candidate's.
        seed: Seed of the interval's resampling.

    Raises:
        MeasurementError: If they are not about the same items under the same protocol.
    """
    _check_comparable(reference, candidate)
    pairs = list(zip(reference.outcomes, candidate.outcomes, strict=True))
    change = np.array([float(c.correct) - float(r.correct) for r, c in pairs])
    margins = [
        c.margin - r.margin for r, c in pairs if r.margin is not None and c.margin is not None
    ]
    paired = paired_difference(change, seed=seed)
    margin_change = float(np.mean(margins)) if margins else None
    return PairedTask(**asdict(paired), margin_change=margin_change)


def _check_comparable(reference: TaskResult, candidate: TaskResult) -> None:
    ids = [[outcome.item_id for outcome in r.outcomes] for r in (reference, candidate)]
    what = [(r.task, r.protocol) for r in (reference, candidate)]
    if ids[0] != ids[1] or what[0] != what[1]:
        raise MeasurementError(
            f"Results of {what[0]} and {what[1]} are not about the same items.",
            field="protocol",
            value=candidate.protocol,
            remedy="Run both with the same task, number of items and seed.",
        )
