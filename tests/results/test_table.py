from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pandas as pd
import pytest

from infopt.config import EngineConfig
from infopt.errors import ResultError
from infopt.results import (
    MixedHardwareWarning,
    RunRecord,
    load_results,
    load_samples,
    read_table,
    require_columns,
    write_table,
)

Make = Callable[..., RunRecord]
FAILURE = {"type": "E", "message": "m", "field": None, "remedy": None}


@pytest.fixture
def results(make_record: Make, tmp_path: Path) -> Path:
    """Two good runs and a failed one."""
    percentiles = {"p50": 0.1, "p90": 0.2, "p99": None, "mean": 0.1, "count": 12}
    make_record(
        slug="a", latency={"ttft_s": percentiles}, samples={"ttft_s": [0.1, None, 0.3]}
    ).write(tmp_path)
    make_record(
        stage="baseline",
        slug="b",
        config=EngineConfig(model="tiny", dtype="float32").to_dict(),
        workload={"kind": "synthetic", "lengths": {"kind": "uniform", "min": 1}},
        throughput={"output_tokens_per_s": 5.0},
    ).write(tmp_path)
    make_record(slug="c", status="failed", failure=FAILURE).write(tmp_path)
    return tmp_path


def test_one_row_per_record_with_dotted_columns(results: Path) -> None:
    table = load_results(results)
    assert list(table["run"]) == ["baseline/b", "batching/a", "batching/c"]
    assert list(table["status"]) == ["ok", "ok", "failed"]
    row = table.set_index("run")
    assert row.loc["batching/a", "latency.ttft_s.p50"] == 0.1
    assert pd.isna(row.loc["batching/a", "latency.ttft_s.p99"])
    assert row.loc["batching/a", "latency.ttft_s.count"] == 12
    assert row.loc["baseline/b", "workload.lengths.min"] == 1
    assert row.loc["baseline/b", "config.dtype"] == "float32"
    assert row.loc["baseline/b", "config.max_num_seqs"] == EngineConfig(model="x").max_num_seqs
    assert row.loc["batching/c", "failure.message"] == "m"
    assert row.loc["baseline/b", "hardware.num_cores"] == 2
    assert not any(c.startswith("samples") for c in table.columns)


def test_absent_sections_leave_no_empty_columns(results: Path) -> None:
    columns = set(load_results(results).columns)
    assert not columns & {"latency", "workload", "failure", "quality", "roofline", "comparison"}


def test_folder_parts_files_and_lists_are_read(results: Path) -> None:
    folder = results / "runs" / "batching"
    assert list(load_results(folder)["slug"]) == ["a", "c"]
    assert list(load_results(folder / "a.json")["slug"]) == ["a"]
    assert list(load_results([folder / "c.json", results / "runs" / "baseline"])["slug"]) == [
        "b",
        "c",
    ]


def test_other_json_in_the_results_folder_is_no_record(results: Path) -> None:
    (results / "notebooks.json").write_text("[]")
    (results / "runs" / "batching" / ".a.json.7.tmp").write_text("{")
    assert len(load_results(results)) == 3


def test_a_broken_record_is_named(results: Path) -> None:
    path = results / "runs" / "batching" / "a.json"
    path.write_text(path.read_text()[:100])
    with pytest.raises(ResultError, match=r"batching/a\.json"):
        load_results(results)


def test_a_record_with_an_unknown_key_is_named(results: Path) -> None:
    path = results / "runs" / "batching" / "a.json"
    document = json.loads(path.read_text())
    document["identity"]["colour"] = "red"
    path.write_text(json.dumps(document))
    with pytest.raises(ResultError, match=r"a\.json.*identity\.colour"):
        load_results(results)


@pytest.mark.parametrize("make_it", [True, False])
def test_no_records_is_an_error_with_a_remedy(tmp_path: Path, make_it: bool) -> None:
    folder = tmp_path / "results"
    if make_it:
        folder.mkdir()
    with pytest.raises(ResultError, match="make run"):
        load_results(folder)


def test_two_machines_give_a_warning(results: Path, make_record: Make) -> None:
    make_record(slug="d", hardware={"cpu_model": "other"}).write(results)
    with pytest.warns(MixedHardwareWarning, match="2 machines"):
        table = load_results(results)
    assert len(set(table["hardware_id"])) == 2


def test_a_fingerprint_brings_its_own_id(make_record: Make, tmp_path: Path) -> None:
    hardware = {"hardware_id": "abc", "os_release": "1"}
    make_record(slug="a", hardware=hardware).write(tmp_path)
    make_record(slug="b", hardware=hardware | {"os_release": "2"}).write(tmp_path)
    assert list(load_results(tmp_path)["hardware_id"]) == ["abc", "abc"]


def test_samples_become_a_long_table(results: Path) -> None:
    samples = load_samples(results)
    assert list(samples["run"]) == ["batching/a"] * 3
    assert list(samples["name"]) == ["ttft_s"] * 3
    assert samples["value"].isna().tolist() == [False, True, False]
    shutil.rmtree(results / "runs" / "batching")
    assert load_samples(results).empty


def test_tables_survive_parquet(results: Path) -> None:
    table = load_results(results)
    read = read_table(write_table(table, results / "tables" / "all.parquet"))
    assert list(read.columns) == list(table.columns)
    assert read["run"].tolist() == table["run"].tolist()
    assert [list(s) for s in read["seeds"]] == [[0, 1]] * 3
    assert list(read["latency.ttft_s.p50"].dropna()) == [0.1]


def test_tables_are_written_as_csv(results: Path) -> None:
    path = write_table(load_results(results), results / "all.csv")
    assert list(pd.read_csv(path)["slug"]) == ["b", "a", "c"]


def test_mixed_types_and_other_endings_are_refused(results: Path) -> None:
    mixed = pd.DataFrame({"extra.x": [1, "a"]})
    with pytest.raises(ResultError, match=r"extra\.x"):
        write_table(mixed, results / "x.parquet")
    with pytest.raises(ResultError, match=r"x\.xlsx"):
        write_table(mixed, results / "x.xlsx")
    assert not list(results.glob("x.*"))


def test_a_missing_column_gets_the_nearest_one(results: Path) -> None:
    with pytest.raises(ResultError, match=r"Did you mean 'latency\.ttft_s\.p50'"):
        require_columns(load_results(results), ["latency.ttft.p50"], "A plot")


def test_every_row_reads_back_as_a_record(results: Path) -> None:
    paths = sorted((results / "runs").rglob("*.json"))
    assert [RunRecord.read(p).path(results) for p in paths] == paths


def test_a_results_folder_without_records_has_none(tmp_path: Path) -> None:
    """Pins: of a run that was killed early other files were taken for broken records."""
    for part in ("models", "slices"):
        (tmp_path / part).mkdir()
        (tmp_path / part / "other.json").write_text("{}")
        with pytest.raises(ResultError, match="no run records"):
            load_results(tmp_path)


def test_a_broken_table_is_named(tmp_path: Path) -> None:
    """Pins: half of a table ended in an error of the library's that named no file."""
    path = tmp_path / "power.parquet"
    for content in (b"", b"PAR1 and then nothing"):
        path.write_bytes(content)
        with pytest.raises(ResultError, match=r"power\.parquet is no table"):
            read_table(path)
