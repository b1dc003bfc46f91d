"""`infopt recommend`: everything that the file says, readably."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from infopt.bench.latency import Chunk, RequestTiming
from infopt.bench.request_samples import samples_of_requests
from infopt.bench.slo import SLO
from infopt.config import EngineConfig
from infopt.results import RunRecord, write_json
from infopt.select import Recommendation, read_recommendation, write_recommendation
from infopt.select.recommendation import Evidence, Nearest, Rejected, Sensitivity, Tie


def make(**changes: Any) -> Recommendation:
    values: dict[str, Any] = {
        "status": "undecided",
        "reason": "batching/a cannot be told from batching/b.",
        "config": EngineConfig(model="m", max_num_seqs=8).to_dict(),
        "run": "batching/a",
        "objective": "goodput",
        "slo_name": "chat",
        "slo": {"ttft_s": 0.2, "tpot_s": None, "itl_s": 0.05, "e2e_s": None, "percentile": 90.0},
        "floor": {"max_kl": 0.02, "max_perplexity_ratio": 1.02, "check_tasks": True},
        "evidence": (Evidence("latency.ttft_s.p90", "TTFT p90", 151.2, 140.0, 170.5, "ms"),),
        "ties": (Tie("batching/b", 4.9, "undecided, the intervals overlap"),),
        "sensitivity": (
            Sensitivity("relax", "ttft_s", 0.2, 0.4, "batching/c", "With 400 ms batching/c wins."),
        ),
        "rejected": tuple(Rejected(f"batching/r{i}", ("too slow",)) for i in range(12)),
        "nearest": None,
        "notes": ("A note [with brackets].",),
        "hardware": {"cpu_model": "Some CPU", "num_cores": 2, "gpus": []},
        "hardware_id": "0123456789ab",
        "infopt_version": "0.1.0",
        "commit": "version:0.1.0",
        "created": "2026-01-02T03:04:05Z",
    }
    return Recommendation(**(values | changes))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return write_recommendation(make(), tmp_path / "recommendation.yaml")


def test_everything_that_matters_is_shown(run_cli: Any, path: Path) -> None:
    text = run_cli("recommend", str(path)).stdout
    for words in (
        "batching/a  undecided",
        "objective (chat): ttft_s <= 0.2, itl_s <= 0.05 at p90",
        "quality floor: max_kl 0.02",
        "max_num_seqs: 8",
        "TTFT p90  151 [140, 170] ms",
        "batching/b: undecided, the intervals overlap",
        "With 400 ms batching/c wins.",
        "A note [with brackets].",
        "Some CPU, 2 cores",
    ):
        assert words in text
    assert "block_size" not in text  # at its default


def test_long_lists_are_cut_on_request_only(run_cli: Any, path: Path) -> None:
    text = run_cli("recommend", str(path)).stdout
    assert "batching/r7" in text
    assert "batching/r8" not in text
    assert "4 more (--all shows them)" in text
    assert "batching/r11" in run_cli("recommend", str(path), "--all").stdout


def test_json_is_the_document(run_cli: Any, path: Path) -> None:
    assert json.loads(run_cli("recommend", str(path), "--json").stdout) == make().to_dict()


def test_nothing_feasible(run_cli: Any, tmp_path: Path) -> None:
    nearest = Nearest("batching/a", ("TTFT p90 0.4 s is above 0.2 s",), {"model": "m"})
    empty = make(status="none_feasible", config=None, run=None, nearest=nearest)
    path = write_recommendation(empty, tmp_path / "recommendation.yaml")
    text = run_cli("recommend", str(path)).stdout
    assert "no run  nothing is feasible" in text
    assert "Nearest: batching/a" in text
    assert "TTFT p90 0.4 s is above 0.2 s" in text
    assert "Configuration" not in text
    message = run_cli("generate", "x", "--config", str(path), ok=False).output
    assert "holds no configuration" in message


@dataclass
class Run:
    duration_s: float
    timings: list[RequestTiming]


def requests(goodput: float, ttft_s: float) -> Run:
    """Return a second of traffic: so many requests within the time, and two that took a second."""
    times = [ttft_s] * int(goodput) + [1.0] * 2
    return Run(1.0, [RequestTiming(0.0, chunks=(Chunk(t, 1),), finished_s=t) for t in times])


def record(slug: str, goodput: float, ttft_s: float, kl: float) -> RunRecord:
    """Return a finalist with intervals too narrow for ties."""
    percentiles = {"p50": ttft_s / 2, "p90": ttft_s, "p99": None, "mean": None, "count": 50}
    return RunRecord(
        stage="select",
        slug=f"finalists.{slug}",
        config=EngineConfig(model="m", max_num_seqs=int(goodput)).to_dict(),
        commit="version:0.1.0",
        versions={"infopt": "0", "python": "3", "torch": "2", "transformers": None},
        hardware={"hardware_id": "m1", "num_cores": 2},
        seeds=(0,),
        started="2026-01-02T03:04:05Z",
        duration_s=1.0,
        quality={
            "protocol": {"tier": "screen", "texts": {"docs": "d", "code": "c"}},
            "perplexity": {"docs": 13.5, "code": 6.0},
            "kl_mean": kl,
        },
        latency={"ttft_s": percentiles},
        throughput={
            "num_requests": 50,
            "num_completed": 50,
            "offered_requests_per_s": 8.0,
            "output_tokens_per_s": 10 * goodput,
        },
        samples=samples_of_requests([requests(goodput, ttft_s)] * 6),
        extra={"slice": "finalists", "candidate": slug},
        slo={"name": "own", "limits": {"percentile": 90}, "goodput_requests_per_s": goodput},
        intervals={"slo.goodput_requests_per_s": {"low": goodput - 0.1, "high": goodput + 0.1}},
    )


@pytest.fixture
def results(tmp_path: Path) -> Path:
    """A results folder with three finalists: slow and exact, fast, fastest but lossy."""
    runs = [
        record("unoptimized", 2, 0.05, 0.0),
        record("composed", 4, 0.15, 0.001),
        record("without-x", 6, 0.15, 0.05),
    ]
    for run in runs:
        run.write(tmp_path)
    manifest = {"stage": "select", "records": [run.slug for run in runs]}
    write_json(tmp_path / "slices" / "select" / "finalists.json", manifest)
    slo = SLO(ttft_s=0.2, percentile=90).to_dict()
    write_recommendation(make(slo=slo, slo_name=None), tmp_path / "recommendation.yaml")
    return tmp_path


@pytest.mark.parametrize(
    ("options", "run"),
    [
        (("--objective", "goodput"), "select/finalists.composed"),
        (("--slo", "ttft_s=0.1,percentile=90"), "select/finalists.unoptimized"),
        (("--floor", "lossy"), "select/finalists.without-x"),
        (("--floor", "none"), "select/finalists.without-x"),
        (("--floor", "max_kl=0.0005"), "select/finalists.unoptimized"),
        (("--slo", "ttft_s=0.01,percentile=90"), None),
    ],
)
def test_chooses_again_under_other_demands(
    run_cli: Any, results: Path, options: tuple[str, ...], run: str | None
) -> None:
    path = str(results / "recommendation.yaml")
    found = json.loads(run_cli("recommend", path, "--json", *options).stdout)
    assert found["run"] == run
    assert "not tried on fresh seeds" in found["notes"][0]
    assert read_recommendation(path).run == "batching/a"  # the file stays as it was


def evidence(document: dict[str, Any]) -> dict[str, float]:
    return {entry["column"]: entry["value"] for entry in document["evidence"]}


def test_goodput_is_that_under_the_objective_that_is_asked_for(run_cli: Any, results: Path) -> None:
    """Pins: goodput was shown as recorded, whatever objective was chosen under."""
    path = str(results / "recommendation.yaml")
    options = ("--json", "--slo", "ttft_s=2,percentile=90")
    found = json.loads(run_cli("recommend", path, *options).stdout)
    assert found["run"] == "select/finalists.composed"
    assert evidence(found)["slo.goodput_requests_per_s"] == 6  # four, and the two slow ones
    assert evidence(found)["slo.goodput_share"] == 100
    goodput = [e for e in found["ablation"] if e["column"] == "slo.goodput_requests_per_s"]
    assert [(e["composed"], e["without"]) for e in goodput] == [(6, 8)]
    assert "8 requests/s" in found["notes"][1]  # the load is still that of the old objective


def test_records_without_requests_say_that_their_goodput_is_unknown(
    run_cli: Any, results: Path
) -> None:
    for slug in ("composed", "without-x"):
        path = results / "runs" / "select" / f"finalists.{slug}.json"
        RunRecord.read(path).replace(samples=None).write(results)
    options = ("--json", "--all", "--slo", "ttft_s=2,percentile=90")
    path = str(results / "recommendation.yaml")
    found = json.loads(run_cli("recommend", path, *options).stdout)
    assert found["run"] == "select/finalists.unoptimized"
    reasons = {r["run"]: " ".join(r["reasons"]) for r in found["rejected"]}
    assert "Goodput under this objective is unknown" in reasons["select/finalists.composed"]
    found = json.loads(run_cli("recommend", path, *options, "--objective", "throughput").stdout)
    assert found["run"] == "select/finalists.composed"
    assert "slo.goodput_requests_per_s" not in evidence(found)
    assert any("is unknown" in note for note in found["notes"])


def test_a_new_choice_is_written_where_it_was_asked_for(run_cli: Any, results: Path) -> None:
    target = results / "lossy.yaml"
    path = str(results / "recommendation.yaml")
    run_cli("recommend", path, "--floor", "lossy", "--write", str(target))
    assert read_recommendation(target).run == "select/finalists.without-x"


def test_unknown_demands_are_named(run_cli: Any, results: Path) -> None:
    path = str(results / "recommendation.yaml")
    for options in (("--objective", "goodputt"), ("--floor", "lossi"), ("--slo", "ttft=1")):
        message = run_cli("recommend", path, *options, ok=False).output
        assert options[1].partition("=")[0] in message


def test_a_results_folder_is_as_good_as_the_file_in_it(run_cli: Any, results: Path) -> None:
    assert "batching/a  undecided" in run_cli("recommend", str(results)).stdout
    message = run_cli("recommend", str(results / "slices"), ok=False).output
    assert "There is no recommendation at" in message


def test_an_empty_demand_is_not_taken_for_none(run_cli: Any, results: Path) -> None:
    """Pins: `--slo "$UNSET"` printed the old choice as if it answered."""
    for option in ("--slo", "--floor", "--objective"):
        message = run_cli("recommend", str(results), option, "", ok=False).output
        assert "Error:" in message


def test_without_its_folder_a_recommendation_cannot_be_chosen_again(
    run_cli: Any, path: Path
) -> None:
    message = run_cli("recommend", str(path), "--floor", "lossy", ok=False).output
    assert "holds no finalists to choose from again" in message
    assert "in its results folder" in message


def test_a_percentile_that_no_record_has_is_explained(run_cli: Any, results: Path) -> None:
    options = (str(results), "--slo", "ttft_s=0.2,percentile=60")
    assert "records keep" not in run_cli("recommend", *options).stdout  # each request says it
    for path in (results / "runs" / "select").iterdir():
        RunRecord.read(path).replace(samples=None).write(results)
    assert "records keep p50, p90, p99" in run_cli("recommend", *options).stdout


def test_a_place_that_cannot_be_written_is_one_message(run_cli: Any, path: Path) -> None:
    """Pins: every file that could not be written or read was a traceback."""
    target = path / "below-a-file" / "new.yaml"
    message = run_cli("recommend", str(path), "--write", str(target), ok=False).output
    assert "recommendation.yaml" in message
    assert "--debug" in message
