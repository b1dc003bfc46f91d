"""`merge_results`: several machines in one table, told apart."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path

import pytest

from infopt.errors import ResultError
from infopt.results import RunRecord, machine_name, merge_results

ONE = {"hardware_id": "m1", "cpu_model": "Some CPU", "num_cores": 2, "gpus": []}
TWO = {"hardware_id": "m2", "cpu_model": "Some CPU", "num_cores": 2, "gpus": ["Some GPU"]}


def test_machines_are_named_and_nothing_is_lost(
    make_record: Callable[..., RunRecord], tmp_path: Path
) -> None:
    make_record(hardware=ONE).write(tmp_path / "one")
    make_record(hardware=TWO).write(tmp_path / "two")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        table = merge_results([tmp_path / "one", tmp_path / "two"])
    assert table.columns[0] == "machine"
    assert set(table["machine"]) == {
        "Some CPU, 2 cores (m1)",
        "Some CPU, 2 cores, Some GPU (m2)",
    }
    assert len(table) == 2


def test_a_repeated_run_is_refused_or_the_newest_kept(
    make_record: Callable[..., RunRecord], tmp_path: Path
) -> None:
    make_record(hardware=ONE, started="2026-01-02T00:00:00Z").write(tmp_path / "new")
    make_record(hardware=ONE, started="2026-01-01T00:00:00Z").write(tmp_path / "old")
    folders = [tmp_path / "new", tmp_path / "old"]
    with pytest.raises(ResultError, match=r"is in .*new.* and in .*old"):
        merge_results(folders)
    for order in (folders, folders[::-1]):
        table = merge_results(order, repeated="newest")
        assert list(table["started"]) == ["2026-01-02T00:00:00Z"]


def test_a_machine_without_an_id_gets_one_from_its_fingerprint() -> None:
    assert machine_name({"cpu_model": "X"}) != machine_name({"cpu_model": "X", "ram_gib": 4})
