"""What would change the choice: which limit, by how much, and who would win then."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from infopt.results.html import format_value
from infopt.results.metrics import metric_of
from infopt.select.energy_order import rests_on_model
from infopt.select.objectives import Objective
from infopt.select.recommendation import Sensitivity
from infopt.select.rows import Row, number, rows_of
from infopt.select.slo_filter import attained
from infopt.select.verdict import ranked
from infopt.select.violation import Violation

if TYPE_CHECKING:
    import pandas as pd

    from infopt.bench.slo import SLO

MAX_ENTRIES = 6


def sensitivities(
    marked: pd.DataFrame,
    chosen: Row,
    rivals: Sequence[Row],
    objective: Objective,
    slo: SLO | None,
) -> tuple[Sensitivity, ...]:
    """Return what would change the choice, the smallest change first.

    Args:
        marked: From ``filter_runs``.
        chosen: The chosen row.
        rivals: The other feasible rows, best first.
        objective: What is optimised.
        slo: The objective that the rows were filtered with.
    """
    found = [*_relaxed(marked, chosen, objective), *_tightened(chosen, rivals, slo)]
    found.sort(key=_relative_change)
    return tuple(found[:MAX_ENTRIES])


def value_text(row: Row, column: str) -> str:
    """Return a number of a row with its unit, as ``12.3 requests/s``, and whether it is derived."""
    value = number(row, column)
    if value is None:
        return "not measured"
    return quantity(value, column) + (" (derived)" if rests_on_model(row, column) else "")


def quantity(value: float, column: str) -> str:
    """Return a stored value as displayed, with its unit."""
    metric = metric_of(column)
    return f"{format_value(value * metric.display_scale, 3)} {metric.display_unit}".strip()


def _relaxed(marked: pd.DataFrame, chosen: Row, objective: Objective) -> list[Sensitivity]:
    """Return for each kind of violation the cheapest one that lets a better run in."""
    cheapest: dict[tuple[str, ...], tuple[float, Any, list[Violation]]] = {}
    for row in rows_of(marked):
        violations = [*row["slo_violations"], *row["quality_violations"]]
        if row["other_violations"] or not violations or not _beats(row, chosen, objective):
            continue
        if any(v.value is None or v.limit is None for v in violations):
            continue
        key = tuple(sorted(v.constraint for v in violations))
        excess = max(v.excess for v in violations)
        if key not in cheapest or excess < cheapest[key][0]:
            cheapest[key] = (excess, row, violations)
    return [_relax_entry(row, violations, objective) for _, row, violations in cheapest.values()]


def _relax_entry(row: Row, violations: Sequence[Violation], objective: Objective) -> Sensitivity:
    worst = max(violations, key=lambda v: v.excess)
    changes = " and ".join(_change_text(v) for v in violations)
    value = value_text(row, objective.column)
    message = f"If {changes}, {row['run']} would win with {value} ({objective.name})."
    return Sensitivity(
        "relax", worst.constraint, worst.limit, worst.value, str(row["run"]), message
    )


def _change_text(violation: Violation) -> str:
    assert violation.value is not None and violation.limit is not None
    old = quantity(violation.limit, violation.column)
    new = quantity(violation.value, violation.column)
    name = metric_of(violation.column).label
    change = f"{(violation.value / violation.limit - 1) * 100:+.3g} %" if violation.limit else ""
    return f"the limit on {name} were {new} instead of {old} ({change})"


def _tightened(chosen: Row, rivals: Sequence[Row], slo: SLO | None) -> list[Sensitivity]:
    """Return the limits below which the chosen run itself would fall out."""
    found = []
    for name, limit in (slo.limits if slo else {}).items():
        assert slo is not None
        column, value = attained(chosen, name, slo)
        if value is None:
            continue
        survivors = (r for r in rivals if (attained(r, name, slo)[1] or value) < value)
        heir = next((str(row["run"]) for row in survivors), None)
        then = f"{heir} would be chosen" if heir else "no measured run would be left"
        message = (
            f"If the limit on {metric_of(column).label} were below {quantity(value, column)} "
            f"(now {quantity(limit, column)}), {then}."
        )
        found.append(Sensitivity("tighten", name, limit, value, heir, message))
    return found


def _beats(row: Row, chosen: Row, objective: Objective) -> bool:
    if number(row, objective.column) is None:
        return False
    return ranked([chosen, row], objective)[0]["run"] == row["run"]


def _relative_change(entry: Sensitivity) -> float:
    if not entry.limit or entry.needed is None:
        return float("inf")
    return abs(entry.needed - entry.limit) / abs(entry.limit)
