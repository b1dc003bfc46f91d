"""Records as a table: one row per run, one column per number."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from infopt.errors import ResultError, nearest
from infopt.results.identity import hardware_id
from infopt.results.record import IDENTITY_FIELDS, SECTIONS, RunRecord

if TYPE_CHECKING:
    import pandas as pd

_PARTS = ("runs", "slices", "models", "tables", "logs")
"""Folders that tell a results folder from a part of one, also before it has any record."""

PathOrPaths = str | Path | Iterable[str | Path]


class MixedHardwareWarning(UserWarning):
    """Records of different machines stand in one table: their speeds cannot be compared."""


def load_results(path: PathOrPaths = "results") -> pd.DataFrame:
    """Read run records into a table.

    Args:
        path: A results folder (or a part of it), a record, or several files.

    Returns:
        One row per record, failed ones included, sorted by stage and start. ``run``, ``stage``,
        ``slug``, ``status`` and ``hardware_id`` come first; everything else has a dotted name:
        ``config.max_num_seqs``, ``quality.kl_mean``, ``latency.ttft_s.p50``. What a record does not
        have is missing (NaN or None). Raw samples are left out: see ``load_samples``.

    Raises:
        ResultError: A file is broken (the message names it), or there are no records.
    """
    return records_table(read_records(path))


def records_table(records: Sequence[RunRecord]) -> pd.DataFrame:
    """Return records as the table that `load_results` describes."""
    import pandas as pd

    table = _without_placeholders(pd.DataFrame([flatten_record(record) for record in records]))
    table = table.sort_values(["stage", "started", "slug"], kind="stable", ignore_index=True)
    machines = sorted(table["hardware_id"].unique())
    if len(machines) > 1:
        warnings.warn(
            f"These records come from {len(machines)} machines (hardware_id: "
            f"{', '.join(machines)}); compare speeds within one machine only.",
            MixedHardwareWarning,
            stacklevel=3,
        )
    return table


def load_samples(path: PathOrPaths = "results") -> pd.DataFrame:
    """Read raw samples into a long table: run, stage, slug, name, index, value."""
    import pandas as pd

    rows = [
        {"run": r.run, "stage": r.stage, "slug": r.slug, "name": name, "index": i, "value": value}
        for r in read_records(path)
        for name, values in (r.samples or {}).items()
        for i, value in enumerate(values)
    ]
    columns = ["run", "stage", "slug", "name", "index", "value"]
    return pd.DataFrame(rows, columns=pd.Index(columns)).astype({"value": float})


def read_records(path: PathOrPaths = "results") -> list[RunRecord]:
    """Read all records under a folder, or the files given.

    Raises:
        ResultError: A file is broken, or there are no records.
    """
    files = find_records(path)
    if not files:
        raise ResultError(
            f"There are no run records in {path}.",
            field="path",
            value=str(path),
            remedy="Run the pipeline first (`make run`), or give the right folder.",
        )
    return [RunRecord.read(file) for file in files]


def find_records(path: PathOrPaths = "results") -> list[Path]:
    """Return the record files of a results folder, of one of its parts, or the files given."""
    if not isinstance(path, str | Path):
        return [file for entry in path for file in find_records(entry)]
    path = Path(path)
    if path.is_dir():
        # A results folder holds other JSON too; its records are all under runs/.
        is_whole = any((path / part).is_dir() for part in _PARTS)
        return sorted((path / "runs" if is_whole else path).rglob("*.json"))
    return [path] if path.suffix == ".json" else []


def flatten_record(record: RunRecord) -> dict[str, Any]:
    """Return a record as one flat row (raw samples left out)."""
    row: dict[str, Any] = {
        "run": record.run,
        "stage": record.stage,
        "slug": record.slug,
        "status": record.status,
        "hardware_id": hardware_id(record.hardware),
        "failure.type": None,
        "failure.message": None,
    }
    for name in IDENTITY_FIELDS:
        row.update(_flatten(name, getattr(record, name)))
    for name in SECTIONS:
        if name != "samples":
            row.update(_flatten(name, getattr(record, name)))
    return row


def write_table(table: pd.DataFrame, path: str | Path) -> Path:
    """Write a table as ``.parquet`` or ``.csv``, atomically.

    Raises:
        ResultError: Another ending, or a column that mixes types (it is named).
    """
    from infopt.results.files import write_bytes_atomic, write_text_atomic

    path = Path(path)
    if path.suffix == ".csv":
        return write_text_atomic(path, table.to_csv(index=False))
    if path.suffix != ".parquet":
        raise ResultError(
            f"Tables are written as .parquet or .csv, not as {path.name!r}.",
            field="path",
            value=str(path),
        )
    return write_bytes_atomic(path, _parquet(table))


def read_table(path: str | Path) -> pd.DataFrame:
    """Read a table that ``write_table`` wrote as ``.parquet``.

    Raises:
        ResultError: There is none, or it is broken.
    """
    import pandas as pd
    import pyarrow as pa

    if not Path(path).is_file():
        raise ResultError(f"There is no table {path}.", field="path", value=str(path))
    try:
        return pd.read_parquet(path)
    except pa.ArrowException as error:
        raise ResultError(
            f"{path} is no table: {error}.",
            field="path",
            value=str(path),
            remedy="Delete the file and run the pipeline again: it makes the table anew.",
        ) from error


def require_columns(table: pd.DataFrame, columns: Iterable[str], what: str) -> None:
    """Refuse a table that lacks columns.

    Args:
        table: Any table.
        columns: Columns that are needed.
        what: Who needs them, for the message.

    Raises:
        ResultError: Names the first missing column and the nearest one there is.
    """
    for column in columns:
        if column not in table.columns:
            present = [str(c) for c in table.columns]
            raise ResultError(
                f"{what} needs the column {column!r}, which the table does not have."
                f"{nearest(column, present)}",
                field=column,
                value=column,
            )


def _flatten(name: str, value: Any) -> dict[str, Any]:
    if isinstance(value, Mapping):
        flat: dict[str, Any] = {}
        for key, item in value.items():
            flat.update(_flatten(f"{name}.{key}", item))
        return flat
    return {name: list(value) if isinstance(value, tuple) else value}


def _without_placeholders(table: pd.DataFrame) -> pd.DataFrame:
    """Drop the empty column of an absent section or mapping (``latency``, ``config.speculative``).

    Where other rows have the section, its parts have columns of their own.
    """
    absent = {str(name) for name, is_missing in table.isna().all().items() if is_missing}
    parents = set(SECTIONS) | {"workload", "config", "failure"}
    for name in table.columns:
        parts = str(name).split(".")
        parents |= {".".join(parts[:depth]) for depth in range(1, len(parts))}
    return table.drop(columns=sorted(absent & parents))


def _parquet(table: pd.DataFrame) -> bytes:
    import pyarrow as pa
    import pyarrow.parquet as pq

    columns = {}
    for name in table.columns:
        try:
            columns[str(name)] = pa.Array.from_pandas(table[name])
        except (pa.ArrowInvalid, pa.ArrowTypeError) as error:
            raise ResultError(
                f"The column {name!r} mixes types and cannot be written to a table: {error}.",
                field=str(name),
                remedy="Give the value one type in every record.",
            ) from error
    sink = pa.BufferOutputStream()
    pq.write_table(pa.table(columns), sink)
    return sink.getvalue().to_pybytes()
