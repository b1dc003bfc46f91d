"""Whether one run beats another: by the intervals that were measured, never by the bare numbers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from infopt.select.objectives import Objective
from infopt.select.rows import Row, interval, number, text

PairVerdict = Literal["decided", "undecided", "unproven"]
_Interval = tuple[float, float]


def ranked(rows: Sequence[Row], objective: Objective) -> list[Row]:
    """Return rows from best to worst; equal ones keep their order.

    Paired ratios decide where every run has one to the same reference (or is that reference): the
    machine was the same moment by moment. Otherwise the numbers themselves decide.
    """
    ratios = [_ratio(row, objective) for row in rows]
    references = {reference_of(row, objective) for row in rows} - {None}
    runs = {row["run"] for row, ratio in zip(rows, ratios, strict=True) if ratio is None}
    is_paired = len(references) == 1 and runs <= references
    values = [
        (1.0 if ratio is None else ratio) if is_paired else _value(row, objective)
        for row, ratio in zip(rows, ratios, strict=True)
    ]
    sign = -1.0 if objective.is_maximised else 1.0
    order = sorted(range(len(rows)), key=lambda i: sign * values[i])
    return [rows[i] for i in order]


def pair_verdict(best: Row, rival: Row, objective: Objective) -> PairVerdict:
    """Tell whether ``best`` is really better than ``rival``.

    In this order: a paired ratio of the two; paired ratios of both to one reference; intervals of
    the two numbers. Overlapping intervals are ``undecided``; without any it is ``unproven``.

    Args:
        best: Row that is ranked higher.
        rival: Row that is ranked lower.
        objective: What is compared.
    """
    if objective.is_exact:
        equal = _value(best, objective) == _value(rival, objective)
        return "undecided" if equal else "decided"
    direct = _direct(best, rival, objective)
    if direct is not None:
        return direct
    for intervals in (_ratios(best, rival, objective), _intervals(best, rival, objective)):
        if intervals is not None:
            return "decided" if _is_beyond(*intervals, objective) else "undecided"
    return "unproven"


def _is_beyond(best: _Interval, rival: _Interval, objective: Objective) -> bool:
    return best[0] > rival[1] if objective.is_maximised else best[1] < rival[0]


def _direct(best: Row, rival: Row, objective: Objective) -> PairVerdict | None:
    """Read the verdict where one of the two was the other's reference."""
    for row, other, winning in ((best, rival, "better"), (rival, best, "worse")):
        if reference_of(row, objective) == other["run"]:
            verdict = text(row, f"comparison.{objective.paired}.verdict")
            return "decided" if verdict == winning else "undecided"
    return None


def _ratios(best: Row, rival: Row, objective: Objective) -> tuple[_Interval, _Interval] | None:
    """Return the intervals of both ratios to a common reference."""
    reference = reference_of(best, objective)
    if reference is None or reference != reference_of(rival, objective):
        return None
    return _both(best, rival, f"comparison.{objective.paired}.median")


def _intervals(best: Row, rival: Row, objective: Objective) -> tuple[_Interval, _Interval] | None:
    return _both(best, rival, objective.column)


def _both(best: Row, rival: Row, column: str) -> tuple[_Interval, _Interval] | None:
    first, second = interval(best, column), interval(rival, column)
    return None if first is None or second is None else (first, second)


def _ratio(row: Row, objective: Objective) -> float | None:
    return number(row, f"comparison.{objective.paired}.median") if objective.paired else None


def reference_of(row: Row, objective: Objective) -> str | None:
    """Return ``stage/slug`` of the run that the row's paired ratio refers to, where it has one."""
    if objective.paired is None:
        return None
    name = text(row, f"comparison.{objective.paired}.reference")
    return name if name is None or "/" in name else f"{row['stage']}/{name}"


def _value(row: Row, objective: Objective) -> float:
    value = number(row, objective.column)
    assert value is not None, "rows without the objective are sorted out before"
    return value
