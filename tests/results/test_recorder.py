from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from infopt.config import EngineConfig
from infopt.errors import CapacityError, ResultError
from infopt.results import RunRecord, finished_record, load_results, record_run
from infopt.results import files as files_module

CONFIG = EngineConfig(model="tiny", max_num_seqs=4)


def only_record(folder: Path) -> RunRecord:
    (path,) = folder.rglob("*.json")
    return RunRecord.read(path)


def test_a_run_that_ends_is_recorded(tmp_path: Path, hardware: dict[str, Any]) -> None:
    with record_run(
        "batching", "a", CONFIG, hardware=hardware, seeds=[3], results_dir=tmp_path
    ) as run:
        run.throughput = {"output_tokens_per_s": 10.0}
        run.extra["rounds"] = 2
    record = only_record(tmp_path)
    assert record == run.record
    assert run.path is not None and run.path.is_file()
    assert (record.status, record.failure, record.seeds) == ("ok", None, (3,))
    assert record.engine_config() == CONFIG
    assert record.extra == {"rounds": 2}
    assert record.versions["torch"] is not None
    assert record.started.endswith("Z")


def test_a_failure_is_recorded_with_its_reason_and_goes_on(
    tmp_path: Path, hardware: dict[str, Any]
) -> None:
    """A failed job once left an empty file that counted as a success."""
    error = CapacityError("Too big: 9.", field="num_kv_pages", value=9, remedy="Raise it.")
    with (
        pytest.raises(CapacityError) as caught,
        record_run("batching", "a", CONFIG, hardware=hardware, results_dir=tmp_path) as run,
    ):
        run.throughput = {"output_tokens_per_s": 10.0}
        raise error
    assert caught.value is error
    record = only_record(tmp_path)
    assert record.status == "failed"
    assert record.failure == {
        "type": "CapacityError",
        "message": "Too big: 9.",
        "field": "num_kv_pages",
        "remedy": "Raise it.",
    }
    assert record.throughput is None  # numbers of a failed run are never mistaken for results
    row = load_results(tmp_path).iloc[0]
    assert (row["status"], row["failure.type"]) == ("failed", "CapacityError")


def test_any_exception_is_a_reason(tmp_path: Path, hardware: dict[str, Any]) -> None:
    with (
        pytest.raises(ZeroDivisionError),
        record_run("batching", "a", None, hardware=hardware, results_dir=tmp_path),
    ):
        _ = 1 / 0
    assert only_record(tmp_path).failure["type"] == "ZeroDivisionError"


def test_numbers_that_do_not_fit_are_a_failure(tmp_path: Path, hardware: dict[str, Any]) -> None:
    with (
        pytest.raises(ResultError, match=r"throughput\.output_tokens_per_s"),
        record_run("batching", "a", CONFIG, hardware=hardware, results_dir=tmp_path) as run,
    ):
        run.throughput = {"output_tokens_per_s": float("nan")}
    record = only_record(tmp_path)
    assert record.status == "failed"
    assert record.failure["field"] == "throughput.output_tokens_per_s"


def test_an_interrupt_leaves_no_record(tmp_path: Path, hardware: dict[str, Any]) -> None:
    with (
        pytest.raises(KeyboardInterrupt),
        record_run("batching", "a", CONFIG, hardware=hardware, results_dir=tmp_path),
    ):
        raise KeyboardInterrupt
    assert not list(tmp_path.rglob("*.json"))


def test_a_misspelt_section_is_an_error(tmp_path: Path, hardware: dict[str, Any]) -> None:
    with (
        pytest.raises(AttributeError),
        record_run("batching", "a", CONFIG, hardware=hardware, results_dir=tmp_path) as run,
    ):
        run.throughputs = {}


def test_a_bad_name_is_refused_before_the_run(tmp_path: Path, hardware: dict[str, Any]) -> None:
    has_run = False
    with (
        pytest.raises(ResultError),
        record_run("batching", "A/B", CONFIG, hardware=hardware, results_dir=tmp_path),
    ):
        has_run = True
    assert not has_run


def test_an_unwritable_identity_does_not_hide_the_error(
    tmp_path: Path,
) -> None:
    with (
        pytest.raises(ZeroDivisionError) as caught,
        record_run("batching", "a", CONFIG, hardware={}, results_dir=tmp_path),
    ):
        _ = 1 / 0
    assert "No record could be written" in caught.value.__notes__[0]


@pytest.mark.parametrize("broken", ["write", "rename"])
def test_a_failed_write_leaves_the_old_file_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, broken: str
) -> None:
    """A job that died while writing once left half a JSON that counted as complete."""
    path = files_module.write_json(tmp_path / "a.json", {"version": 1})

    def fail(*args: object) -> None:
        raise OSError("disk full")

    if broken == "write":
        monkeypatch.setattr(os, "fsync", fail)
    else:
        monkeypatch.setattr(Path, "replace", fail)
    with pytest.raises(OSError, match="disk full"):
        files_module.write_json(path, {"version": 2})
    assert json.loads(path.read_text()) == {"version": 1}
    assert [p.name for p in tmp_path.iterdir()] == ["a.json"]


KILLED = """
import os, sys, time
from infopt.results import record_run
from infopt.results import files
real = os.fsync
def slow(descriptor):
    print("writing", flush=True)
    time.sleep(60)
    real(descriptor)
files.os.fsync = slow
with record_run("batching", "a", None, hardware={"cpu": "x"}, results_dir=sys.argv[1]) as run:
    run.extra["x"] = 1
"""


def test_a_killed_write_leaves_no_record(tmp_path: Path) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", KILLED, str(tmp_path)], stdout=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline().strip() == "writing"
        assert list(tmp_path.rglob("*.tmp"))
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait(timeout=60)
    assert not list(tmp_path.rglob("*.json"))
    with pytest.raises(ResultError, match="no run records"):
        load_results(tmp_path)


def test_a_run_resumes_only_where_nothing_changed(
    tmp_path: Path, hardware: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    same: dict[str, Any] = {"hardware": hardware, "seeds": [1], "workload": {"kind": "w", "n": 2}}

    def find(**changes: Any) -> RunRecord | None:
        wanted = same | changes
        config = wanted.pop("config", CONFIG)
        return finished_record("batching", "a", config, results_dir=tmp_path, **wanted)

    assert find() is None
    with record_run("batching", "a", CONFIG, results_dir=tmp_path, **same) as run:
        run.extra["x"] = 1
    assert find() == run.record
    assert find(config=CONFIG.to_dict()) == run.record
    assert find(config=CONFIG.replace(max_num_seqs=5)) is None
    assert find(seeds=[2]) is None
    assert find(workload={"kind": "w", "n": 3}) is None
    assert find(hardware={"cpu_model": "other"}) is None
    monkeypatch.setattr("infopt.results.recorder.code_identity", lambda: "other code")
    assert find() is None


def test_failed_and_broken_records_are_not_resumed(
    tmp_path: Path, hardware: dict[str, Any]
) -> None:
    with (
        pytest.raises(ZeroDivisionError),
        record_run("batching", "a", CONFIG, hardware=hardware, results_dir=tmp_path),
    ):
        _ = 1 / 0
    assert finished_record("batching", "a", CONFIG, hardware=hardware, results_dir=tmp_path) is None
    (path,) = tmp_path.rglob("*.json")
    path.write_text("{")
    assert finished_record("batching", "a", CONFIG, hardware=hardware, results_dir=tmp_path) is None


def test_duration_is_wall_time(tmp_path: Path, hardware: dict[str, Any]) -> None:
    with record_run("batching", "a", CONFIG, hardware=hardware, results_dir=tmp_path) as run:
        time.sleep(0.02)
    assert run.record is not None and run.record.duration_s >= 0.02
