"""A constraint that a run misses: which, by how much, in a sentence."""

from __future__ import annotations

from dataclasses import dataclass

from infopt.results.html import format_value
from infopt.results.metrics import metric_of


@dataclass(frozen=True, slots=True)
class Violation:
    """One missed constraint.

    Attributes:
        constraint: Name of the constraint (``ttft_s``, ``max_kl``, ``task:code``).
        column: Column that was compared.
        value: What was measured, in stored units; None where it was not.
        limit: What was allowed; None where the value alone is at fault.
        message: One sentence with both.
    """

    constraint: str
    column: str
    value: float | None
    limit: float | None
    message: str

    @property
    def excess(self) -> float:
        """By how much of the limit the value is beyond it; infinite where it was not measured."""
        if self.value is None or not self.limit:
            return float("inf")
        return abs(self.value - self.limit) / abs(self.limit)


def above(constraint: str, column: str, value: float, limit: float) -> Violation:
    """Return the violation of an upper limit."""
    metric = metric_of(column)
    shown, allowed = _apart(value * metric.display_scale, limit * metric.display_scale)
    share = f" (+{format_value((value / limit - 1) * 100, 3)} %)" if limit > 0 else ""
    unit = f" {metric.display_unit}" if metric.display_unit else ""
    message = f"{metric.label} is {shown}{unit}, the limit is {allowed}{unit}{share}"
    return Violation(constraint, column, value, limit, message)


def _apart(value: float, limit: float) -> tuple[str, str]:
    """Return both numbers with as many digits as it takes to see that they differ."""
    digits = next((n for n in range(3, 7) if format_value(value, n) != format_value(limit, n)), 7)
    return format_value(value, digits), format_value(limit, 3)


def not_measured(constraint: str, column: str, limit: float | None, why: str = "") -> Violation:
    """Return the violation of a constraint that cannot be checked: unproven is not met."""
    message = f"{metric_of(column).label} was not measured{f' ({why})' if why else ''}"
    return Violation(constraint, column, None, limit, message)
