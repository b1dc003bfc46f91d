"""Whether one run beats another: by the intervals that were measured, never by the bare numbers."""

from __future__ import annotations

from typing import Any, Literal

from infopt.select.objectives import Objective
from infopt.select.rows import interval, number, text

PairVerdict = Literal["decided", "undecided", "unproven"]


def pair_verdict(best: Any, rival: Any, objective: Objective) -> PairVerdict:
    """Tell whether ``best``, whose value is at least as good, is really better.

    In this order: a paired ratio of the two; paired ratios of both to one reference; intervals of
    the two numbers. Overlapping intervals are ``undecided``; without any it is ``unproven``.

    Args:
        best: Row with the better number.
        rival: Row with the other number.
        objective: What is compared.
    """
    if objective.is_exact:
        equal = number(best, objective.column) == number(rival, objective.column)
        return "undecided" if equal else "decided"
    direct = _direct(best, rival, objective)
    if direct is not None:
        return direct
    for intervals in (_ratios(best, rival, objective), _intervals(best, rival, objective)):
        if intervals is not None:
            (low_a, high_a), (low_b, high_b) = intervals
            apart = low_a > high_b or low_b > high_a
            return "decided" if apart else "undecided"
    return "unproven"


def value_key(row: Any, objective: Objective) -> float:
    """Return a number that is smaller for the better run; the paired ratio if there is one."""
    value = number(row, objective.column)
    assert value is not None
    return -value if objective.is_maximised else value


def _direct(best: Any, rival: Any, objective: Objective) -> PairVerdict | None:
    """Read the verdict where one of the two was the other's reference."""
    for row, other, winning in ((best, rival, "better"), (rival, best, "worse")):
        if _reference(row, objective) == other["run"]:
            verdict = text(row, f"comparison.{objective.paired}.verdict")
            return "decided" if verdict == winning else "undecided"
    return None


def _ratios(
    best: Any, rival: Any, objective: Objective
) -> tuple[tuple[float, float], tuple[float, float]] | None:
    """Return the intervals of both ratios to a common reference."""
    reference = _reference(best, objective)
    if reference is None or reference != _reference(rival, objective):
        return None
    column = f"comparison.{objective.paired}.median"
    first, second = interval(best, column), interval(rival, column)
    return None if first is None or second is None else (first, second)


def _intervals(
    best: Any, rival: Any, objective: Objective
) -> tuple[tuple[float, float], tuple[float, float]] | None:
    first, second = interval(best, objective.column), interval(rival, objective.column)
    return None if first is None or second is None else (first, second)


def _reference(row: Any, objective: Objective) -> str | None:
    """Return ``stage/slug`` of the run that the row's paired ratio refers to."""
    if objective.paired is None:
        return None
    name = text(row, f"comparison.{objective.paired}.reference")
    return name if name is None or "/" in name else f"{row['stage']}/{name}"
