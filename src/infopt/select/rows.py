"""Small readers of result rows, shared by filters, fronts and the recommendation."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from infopt.config import EngineConfig
from infopt.errors import ConfigError, nearest
from infopt.results.metrics import interval_columns
from infopt.results.table import require_columns

if TYPE_CHECKING:
    import pandas as pd

REFERENCE_STAGE = "baseline"

Row = dict[str, Any]
"""One row of the results table, by column name."""


def rows_of(table: pd.DataFrame) -> list[Row]:
    """Return the rows of a table as dicts of plain values."""
    return [{str(k): v for k, v in row.items()} for row in table.to_dict("records")]


def number(row: Row, column: str) -> float | None:
    """Return a number of a row, or None where it is absent, missing or not a number."""
    value = row.get(column)
    if value is None or isinstance(value, str | bool | list | dict):
        return None
    value = float(value)
    return value if math.isfinite(value) else None


def text(row: Row, column: str) -> str | None:
    """Return a text of a row, or None where it is absent or missing."""
    value = row.get(column)
    return value if isinstance(value, str) else None


def interval(row: Row, column: str) -> tuple[float, float] | None:
    """Return the 95 % interval of a number of a row, or None where none was recorded."""
    names = interval_columns(column, row)
    if names is None:
        return None
    low, high = (number(row, name) for name in names)
    return None if low is None or high is None else (low, high)


def check_runs(table: pd.DataFrame, what: str) -> None:
    """Refuse tables without identity columns or with the same run twice.

    Raises:
        ResultError: A column is missing.
        ConfigError: A run occurs twice.
    """
    require_columns(table, ["run", "stage", "slug", "status"], what)
    runs = list(table["run"])
    repeated = next((run for run in runs if runs.count(run) > 1), None)
    if repeated is not None:
        raise ConfigError(
            f"The run {repeated!r} occurs more than once.",
            field="run",
            value=repeated,
            remedy="Select among the records of one results folder.",
        )


def reference_rows(table: pd.DataFrame, reference: str | Sequence[str] | None = None) -> list[Row]:
    """Return the runs that quality is compared with.

    Args:
        table: From ``load_results``.
        reference: Their names (``stage/slug``). By default the runs of the ``baseline`` stage whose
            quality was measured without a reference: that is what makes them one.

    Raises:
        ConfigError: A named run is not among those that reached their end.
    """
    rows = [row for row in rows_of(table) if row["status"] == "ok"]
    if reference is None:
        return [row for row in rows if row["stage"] == REFERENCE_STAGE and _is_reference(row)]
    by_name = {str(row["run"]): row for row in rows}
    names = [reference] if isinstance(reference, str) else list(reference)
    for name in names:
        if name not in by_name:
            raise ConfigError(
                f"The reference run {name!r} is not among the results.{nearest(name, by_name)}",
                field="reference",
                value=name,
            )
    return [by_name[name] for name in names]


def _is_reference(row: Row) -> bool:
    has_quality = text(row, "quality.protocol.tier") is not None
    return has_quality and number(row, "quality.kl_mean") is None


def matching_reference(references: Sequence[Row], row: Row, protocol_column: str) -> Row | None:
    """Return the reference that was measured under the same protocol, or None.

    Numbers of different protocols are never compared.

    Args:
        references: From ``reference_rows``.
        row: The candidate.
        protocol_column: Where the protocol of the number stands.

    Raises:
        ConfigError: Several references fit, so that it is not clear which is meant.
    """
    protocol = text(row, protocol_column)
    if protocol is None:
        return None
    found = [base for base in references if text(base, protocol_column) == protocol]
    if len(found) > 1:
        names = [base["run"] for base in found]
        raise ConfigError(
            f"Several reference runs fit: {', '.join(names)}.",
            field="reference",
            value=names,
            remedy="Name the one to compare with.",
        )
    return found[0] if found else None


def config_of(row: Row) -> dict[str, Any] | None:
    """Return the full engine configuration of a row, or None where another engine ran."""
    options = nested(row, "config")
    if options.get("model") is None:
        return None
    defaults = EngineConfig(model="-").to_dict()
    # A table cell does not tell 1 from 1.0; the defaults do.
    given = {
        name: float(value) if isinstance(defaults.get(name), float) else value
        for name, value in options.items()
        if value is not None
    }
    return EngineConfig.from_dict(given).to_dict()


def nested(row: Row, section: str) -> dict[str, Any]:
    """Return the columns ``section.*`` of a row as nested plain data."""
    document: dict[str, Any] = {}
    for column in row:
        if not column.startswith(f"{section}."):
            continue
        *path, leaf = column.split(".")[1:]
        value = plain(row[column])
        if path and value is None:
            continue  # the column exists because of another run
        target = document
        for part in path:
            parent = target.get(part)
            target[part] = parent if isinstance(parent, dict) else {}
            target = target[part]
        if not isinstance(target.get(leaf), dict):
            target[leaf] = value
    return document


def plain(value: Any) -> Any:
    """Return a table cell as plain data: a gap in a column turns its whole numbers into floats."""
    if hasattr(value, "tolist"):
        value = value.tolist()
    if isinstance(value, list):
        return [plain(v) for v in value]
    if isinstance(value, float):
        if math.isnan(value):
            return None
        return int(value) if value.is_integer() else value
    return value
