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
    shown, allowed = (format_value(v * metric.display_scale, 3) for v in (value, limit))
    share = f" (+{(value / limit - 1) * 100:.3g} %)" if limit > 0 else ""
    unit = f" {metric.display_unit}" if metric.display_unit else ""
    message = f"{metric.label} is {shown}{unit}, the limit is {allowed}{unit}{share}"
    return Violation(constraint, column, value, limit, message)


def not_measured(constraint: str, column: str, limit: float | None, why: str = "") -> Violation:
    """Return the violation of a constraint that cannot be checked: unproven is not met."""
    message = f"{metric_of(column).label} was not measured{f' ({why})' if why else ''}"
    return Violation(constraint, column, None, limit, message)
