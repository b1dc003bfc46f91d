"""Reads the columns of a plot from a results table, scaled to the displayed unit."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from infopt.errors import ResultError
from infopt.results.html import format_value
from infopt.results.metrics import Metric, energy_origin, interval_columns, metric_of
from infopt.results.table import require_columns

if TYPE_CHECKING:
    import pandas as pd

Array = np.ndarray


@dataclass(frozen=True, slots=True)
class Values:
    """One column in displayed units.

    Attributes:
        metric: Its name, unit and direction.
        values: Shape (rows,); NaN where missing.
        low, high: Ends of the 95 % interval, shape (rows,); NaN where there is none.
    """

    metric: Metric
    values: Array
    low: Array
    high: Array

    @property
    def errors(self) -> Array:
        """Lengths below and above for error bars, shape (2, rows); 0 without interval."""
        below, above = self.values - self.low, self.high - self.values
        return np.nan_to_num(np.clip(np.stack([below, above]), 0, None))

    @property
    def has_intervals(self) -> bool:
        """Whether any row has an interval."""
        return bool(np.isfinite(self.low).any())


def usable_rows(table: pd.DataFrame, columns: Sequence[str], what: str) -> tuple[Any, str | None]:
    """Return the rows that have all numbers, and a note about the others.

    Failed runs never have any part in a plot.

    Args:
        table: From ``load_results``.
        columns: Numeric columns that are needed.
        what: Name of the plot, for messages.

    Raises:
        ResultError: A column is missing, or no row has all numbers.
    """
    require_columns(table, columns, what)
    keep = np.ones(len(table), dtype=bool)
    if "status" in table.columns:
        keep &= (table["status"] == "ok").to_numpy()
    for column in columns:
        keep &= np.isfinite(floats(table, column))
    if not keep.any():
        raise ResultError(
            f"{what}: none of {len(table)} rows has numbers in {', '.join(columns)}.",
            field=columns[0],
            value=list(columns),
            remedy="Choose columns that these runs measured.",
        )
    num_left_out = int((~keep).sum())
    plural = "s" if num_left_out > 1 else ""
    note = f"{num_left_out} run{plural} without these numbers left out" if num_left_out else None
    return table[keep].reset_index(drop=True), note


def read_values(table: pd.DataFrame, column: str) -> Values:
    """Return a column with its intervals in displayed units."""
    metric = metric_in(table, column)
    ends = interval_columns(column, [str(c) for c in table.columns])
    nothing = np.full(len(table), np.nan)
    low, high = (floats(table, end) for end in ends) if ends else (nothing, nothing)
    scale = metric.display_scale
    return Values(metric, floats(table, column) * scale, low * scale, high * scale)


def metric_in(table: pd.DataFrame, column: str) -> Metric:
    """Return the metric of a column; its label says where energies are no counter's differences.

    Args:
        table: From ``load_results``.
        column: A column of it.
    """
    metric = metric_of(column)
    if not column.startswith("energy.") or "energy.source" not in table.columns:
        return metric
    origins = dict.fromkeys(energy_origin(source) for source in table["energy.source"])
    label = ", ".join([metric.label, *filter(None, origins)])
    return dataclasses.replace(metric, label=label)


def floats(table: pd.DataFrame, column: str) -> Array:
    """Return a column as float64; what is missing or no number becomes NaN."""
    import pandas as pd

    numbers: Any = pd.to_numeric(table[column], errors="coerce")
    return np.asarray(numbers, dtype=np.float64)


def names(table: pd.DataFrame, column: str | None) -> list[str]:
    """Return a column as text, whole numbers without decimals; empty texts without a column."""
    if column is None:
        return [""] * len(table)
    require_columns(table, [column], "A plot")
    return [_name(value) for value in table[column]]


def _name(value: object) -> str:
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    return "none" if is_missing(value) else str(value)


def is_missing(value: object) -> bool:
    """Tell whether a cell is None or NaN."""
    return value is None or (isinstance(value, float) and math.isnan(value))


def shown(value: float, metric: Metric, digits: int = 3) -> str:
    """Return a displayed value with its unit, for titles and annotations."""
    return f"{format_value(value, digits)} {metric.display_unit}".strip()


def best_index(values: Values) -> int:
    """Return the row with the best value (the lowest where no direction is known)."""
    pick = np.nanargmax if values.metric.better == "higher" else np.nanargmin
    return int(pick(values.values))


def in_sentence(label: str) -> str:
    """Return a label as it stands inside a sentence: ``Goodput`` is lowered, ``TTFT`` is not."""
    return label if label[1:2].isupper() else label[:1].lower() + label[1:]


def superlative(metric: Metric) -> str:
    """Return ``highest`` or ``lowest``, whichever is the best."""
    return "highest" if metric.better == "higher" else "lowest"
