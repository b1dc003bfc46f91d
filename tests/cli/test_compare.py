"""`infopt compare` and `infopt explain`: exit codes, tables, JSON and what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from infopt.cli import app
from infopt.config import EngineConfig
from infopt.results import RunRecord


def record(slug: str, tokens_per_s: float, **changes: Any) -> RunRecord:
    interval = {"estimate": tokens_per_s, "low": tokens_per_s * 0.99, "high": tokens_per_s * 1.01}
    values: dict[str, Any] = {
        "stage": "batching",
        "slug": slug,
        "config": EngineConfig(model="m").to_dict(),
        "commit": "version:0.1.0",
        "versions": {"infopt": "0", "python": "3", "torch": "2", "transformers": None},
        "hardware": {"hardware_id": "m1"},
        "seeds": (0,),
        "started": "2026-01-02T03:04:05Z",
        "duration_s": 1.0,
        "throughput": {"output_tokens_per_s": tokens_per_s},
        "intervals": {"throughput.output_tokens_per_s": {**interval, "count": 6}},
    }
    return RunRecord(**(values | changes))


@pytest.fixture
def folders(tmp_path: Path) -> tuple[str, str]:
    """Two results folders: the run is 20 % slower in the second."""
    for name, speed in (("a", 100.0), ("b", 80.0)):
        record("seqs-8", speed).write(tmp_path / name)
        record("same", 50.0).write(tmp_path / name)
    return str(tmp_path / "a"), str(tmp_path / "b")


def run(*args: str) -> Any:
    return CliRunner().invoke(app, list(args), env={"COLUMNS": "200", "TERM": "dumb"}, color=False)


def test_a_regression_is_exit_code_1_and_named(folders: tuple[str, str]) -> None:
    result = run("compare", *folders)
    assert result.exit_code == 1
    assert "Output throughput  x 0.8 [0.7888, 0.8114]  worse  REGRESSION" in result.stdout
    assert "1 regressions beyond 5 %" in result.stdout
    assert "batching/same" not in result.stdout


def test_within_the_tolerance_and_the_other_way_round_it_is_0(folders: tuple[str, str]) -> None:
    assert run("compare", *folders, "--tolerance", "0.3").exit_code == 0
    assert run("compare", *folders[::-1]).exit_code == 0
    assert "batching/same" in run("compare", *folders, "--all").stdout


def test_json_has_every_number(folders: tuple[str, str]) -> None:
    document = json.loads(run("compare", *folders, "--json").stdout)
    assert document["regressions"] == ["batching/seqs-8: Output throughput x 0.8"]
    changes = {r["run"]: r["changes"][0] for r in document["runs"]}
    assert changes["batching/seqs-8"]["loss"] == pytest.approx(0.25)
    assert changes["batching/same"]["verdict"] == "undecided"


def test_other_machines_are_refused_or_labelled(tmp_path: Path) -> None:
    record("a", 100.0).write(tmp_path / "a")
    record("a", 50.0, hardware={"hardware_id": "m2"}).write(tmp_path / "b")
    folders = (str(tmp_path / "a"), str(tmp_path / "b"))
    refused = run("compare", *folders)
    assert refused.exit_code == 2
    assert "m1 and on m2" in refused.stderr
    assert "other machine" in run("compare", *folders, "--allow-other-machine").stdout


def test_explain_finds_runs_by_path_name_and_slug(folders: tuple[str, str]) -> None:
    path = str(Path(folders[0], "runs", "batching", "seqs-8.json"))
    for name in (path, "batching/seqs-8", "seqs-8"):
        result = run("explain", name, "--results", folders[0])
        assert result.exit_code == 0, result.output
        assert "batching/seqs-8  alone" in result.stdout
        assert "no prediction" in result.stdout


def test_explain_reads_the_reference_beside_the_record(tmp_path: Path) -> None:
    work = {"bytes": 1e9, "weight_bytes": 1e9, "flops": 1e9, "measured_s": 1.0}
    ratio = {"median": 2.0, "low": 1.9, "high": 2.1, "num_pairs": 8, "verdict": "better"}
    comparison = {"output_tokens_per_s": ratio | {"reference": "slow"}}
    record("slow", 10.0, roofline=work | {"predicted_s": 0.8}).write(tmp_path)
    half = work | {"bytes": 5e8, "weight_bytes": 5e8, "predicted_s": 0.4, "measured_s": 0.5}
    record("fast", 20.0, roofline=half, comparison=comparison).write(tmp_path)
    result = run("explain", "fast", "--results", str(tmp_path), "--json")
    document = json.loads(result.stdout)
    assert (document["status"], document["predicted_ratio"]) == ("explained", 2.0)


def test_explain_names_what_is_missing_or_ambiguous(folders: tuple[str, str]) -> None:
    result = run("explain", "seqs-9", "--results", folders[0])
    assert result.exit_code == 2
    assert "Did you mean 'seqs-8'?" in result.stderr
    record("seqs-8", 1.0, stage="serving").write(folders[0])
    result = run("explain", "seqs-8", "--results", folders[0])
    assert result.exit_code == 2
    assert "several stages" in result.stderr


def test_explain_reads_a_record_wherever_it_lies() -> None:
    """Pins: a record directly below the root of the file system was an IndexError."""
    from infopt.cli import explain

    assert explain.reference_path(Path("/seqs-8.json"), "batching/none") == Path(
        "/batching/none.json"
    )
