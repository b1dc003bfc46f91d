"""Results of several machines in one table, told apart by their fingerprints."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from infopt.errors import ResultError
from infopt.results.identity import hardware_id
from infopt.results.record import RunRecord
from infopt.results.table import MixedHardwareWarning, find_records, load_results, read_records

if TYPE_CHECKING:
    import pandas as pd


def merge_results(
    paths: Iterable[str | Path], *, repeated: Literal["error", "newest"] = "error"
) -> pd.DataFrame:
    """Read results folders of several machines into one table.

    Args:
        paths: Results folders (or records), of any machines.
        repeated: What to do with a run that one machine has in two folders: refuse, or keep the
            one that started last.

    Returns:
        The table of ``load_results`` with a first column ``machine``: processor, cores and GPUs
        with the ``hardware_id``. Numbers of time and energy compare within one machine only.

    Raises:
        ResultError: A run occurs twice on one machine, a file is broken, or there are none.
    """
    chosen: dict[tuple[str, str], tuple[RunRecord, Path]] = {}
    for file in find_records(list(paths)):
        record = read_records(file)[0]
        key = (hardware_id(record.hardware), record.run)
        other = chosen.get(key)
        if other is not None and repeated == "error":
            raise _twice(record, other[1], file)
        if other is None or record.started > other[0].started:
            chosen[key] = (record, file)
    with warnings.catch_warnings():
        # Mixing is the purpose here, and the column says which number is of which machine.
        warnings.simplefilter("ignore", MixedHardwareWarning)
        table = load_results([file for _, file in chosen.values()])
    names = {hardware_id(r.hardware): machine_name(r.hardware) for r, _ in chosen.values()}
    table.insert(0, "machine", [names[id_] for id_ in table["hardware_id"]])
    return table


def machine_name(hardware: Mapping[str, Any]) -> str:
    """Return a readable name of a machine that no other machine has.

    >>> machine_name({"cpu_model": "AMD EPYC", "num_cores": 2, "hardware_id": "33e9e99fcc73"})
    'AMD EPYC, 2 cores (33e9e99fcc73)'
    """
    cores = hardware.get("num_cores")
    parts = [hardware.get("cpu_model"), f"{cores} cores" if cores else None]
    parts += list(hardware.get("gpus") or [])
    text = ", ".join(str(part) for part in parts if part)
    return f"{text} ({hardware_id(hardware)})".strip()


def _twice(record: RunRecord, first: Path, second: Path) -> ResultError:
    return ResultError(
        f"The run {record.run!r} of one machine is in {first} and in {second}.",
        field="run",
        value=record.run,
        remedy='Leave one of them out, or say repeated="newest".',
    )
