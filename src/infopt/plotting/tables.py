"""The table that stands below a plot: the same numbers, rounded and labelled."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from infopt.plotting.data import floats, is_missing, names, read_values
from infopt.results.html import format_interval, format_value
from infopt.results.table import require_columns

if TYPE_CHECKING:
    import pandas as pd


def results_table(
    df: pd.DataFrame, columns: Sequence[str], *, label: str = "slug", digits: int = 3
) -> pd.DataFrame:
    """Return the columns of a plot as a table to display.

    Args:
        df: From ``load_results``.
        columns: Columns to show; numbers appear in the unit of their heading.
        label: Column that names the rows.
        digits: Significant digits of numbers without an interval; those with one have as many as it
            leaves certain.

    Returns:
        Texts, ``value [low, high]`` where there is a 95 % interval and an empty text where a value
        is missing; the index holds the names.
    """
    import pandas as pd

    require_columns(df, [label, *columns], "results_table")
    headings, cells = [], {}
    for column in columns:
        values = read_values(df, column)
        heading = values.metric.axis_label
        headings.append(heading)
        cells[heading] = _texts(df, column, digits)
    return pd.DataFrame(cells, index=pd.Index(names(df, label), name=label))


def _texts(df: pd.DataFrame, column: str, digits: int) -> list[str]:
    numbers = floats(df, column)
    if not np.isfinite(numbers).any():
        return ["" if is_missing(value) else str(value) for value in df[column]]
    values = read_values(df, column)
    return [
        _cell(value, low, high, digits)
        for value, low, high in zip(values.values, values.low, values.high, strict=True)
    ]


def _cell(value: float, low: float, high: float, digits: int) -> str:
    if not np.isfinite(value):
        return ""
    if np.isfinite(low) and np.isfinite(high):
        return format_interval(float(value), float(low), float(high))
    return format_value(float(value), digits)
