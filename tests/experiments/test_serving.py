"""The stage `serving` on a tiny model, with a server of its own process."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from infopt.errors import ConfigError, MeasurementError
from infopt.experiments import serving
from infopt.experiments.config import complete_config
from infopt.experiments.figures import draw_serving
from infopt.experiments.serving import rate_slug
from infopt.experiments.serving_record import collect_serving
from infopt.experiments.spec import SliceSpec, slice_spec
from infopt.experiments.stages import run_stage
from infopt.experiments.yaml_files import read_yaml
from infopt.results import RunRecord, read_table

OPTIONS = {
    "rates": [20, 40],
    "duration_s": 0.3,
    "target_share": 0.9,
    "num_bisections": 0,
    "warmup": 1,
    "endpoint": "completions",
    "timeout_s": 60,
    "port": 0,
}


@pytest.fixture
def spec(make_spec: Callable[..., SliceSpec]) -> SliceSpec:
    return make_spec(
        stage="serving",
        name="load",
        reference="chosen",
        candidates={"chosen": {}},
        load="open",
        criterion="goodput",
        options=OPTIONS,
        energy={"meter": "modelled"},
    )


def read(folder: Path, slug: str) -> RunRecord:
    return RunRecord.read(folder / "runs" / "serving" / f"{slug}.json")


def test_each_rate_leaves_a_record_and_the_point_is_handed_on(
    spec: SliceSpec, tmp_path: Path
) -> None:
    manifest = run_stage(spec, tmp_path, num_threads=1)
    assert manifest["records"] == ["load.rate-20", "load.rate-40"]
    record = read(tmp_path, "load.rate-40")
    assert record.extra["transport"] == "http"
    assert (record.workload or {})["load_workload"]["arrivals"] == {"kind": "poisson", "rate": 40}
    assert record.config is not None
    assert record.config["num_threads"] == 1
    counts = record.throughput or {}
    assert counts["num_completed"] == counts["num_requests"] == len(record.samples["ttft_s"])
    assert counts["num_output_tokens"] == 3 * counts["num_requests"]
    assert record.energy["source"] == "modelled"  # as the server itself says
    assert record.energy["j_per_token_low"] < record.energy["j_per_token"]
    assert record.energy["j_per_request"] == pytest.approx(3 * record.energy["j_per_token"])
    other = read(tmp_path, "load.rate-20").samples["arrival_s"]
    assert [2 * t for t in record.samples["arrival_s"][:3]] != pytest.approx(other[:3])  # own seed
    assert (tmp_path / "logs" / "serving" / "load.server.log").is_file()
    manifest_path = tmp_path / "manifest.json"
    manifest_path.write_text(json.dumps(manifest))
    paths = {"table_path": tmp_path / "t.parquet", "chosen_path": tmp_path / "c.yaml"}
    collect_serving(manifest_path, results_dir=tmp_path, **paths)
    assert list(read_table(paths["table_path"])["extra.rate_per_s"]) == [20, 40]
    chosen = read_yaml(paths["chosen_path"])
    assert chosen["engine"] == {}  # nothing was chosen
    assert chosen["saturation"]["last_good_per_s"] == 40
    draw_serving(*paths.values(), {"ttft_s": 1.0}, tmp_path / "f.png")
    assert (tmp_path / "f.png").read_bytes().startswith(b"\x89PNG")


def test_a_server_that_does_not_start_leaves_a_failed_record(
    spec: SliceSpec, tmp_path: Path
) -> None:
    broken = spec.inherit({"num_kv_pages": 1, "block_size": 4})
    with pytest.raises(MeasurementError):
        serving.run(broken.with_model("no-such-model"), tmp_path)
    record = read(tmp_path, "load.rate-20")
    assert record.status == "failed"
    assert "no-such-model" in (record.failure or {})["message"]


def test_a_server_that_dies_leaves_a_failed_record_with_its_last_words(
    spec: SliceSpec, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A load on a dead server is a row of refused connections, which looks like a result."""
    measure, processes = serving.run_http_load, []

    def kill_first(*args: Any, **options: Any) -> Any:
        if processes:
            processes[0].kill()
            processes[0].wait(30)
        return measure(*args, **options)

    check = serving.ServerProcess.check

    def note(server: Any) -> None:
        processes.append(server.process)
        check(server)

    monkeypatch.setattr(serving, "run_http_load", kill_first)
    monkeypatch.setattr(serving.ServerProcess, "check", note)
    with pytest.raises(MeasurementError):
        serving.run(spec, tmp_path)
    record = read(tmp_path, "load.rate-20")
    assert record.status == "failed"
    assert (record.failure or {})["type"] in ("ServerDiedError", "MeasurementError")
    assert not (tmp_path / "runs" / "serving" / "load.rate-40.json").exists()


def test_names_of_rates() -> None:
    assert [rate_slug(r) for r in (8, 0.5, 4 * 2**0.5, 123456.0)] == [
        "rate-8",
        "rate-0.5",
        "rate-5.657",
        "rate-123456",
    ]


def test_configuration_is_checked_before_anything_runs(schema: Any, config: Any) -> None:
    spec = slice_spec(config, "serving", "load")
    assert spec.options["rates"] == [2, 4, 8, 16, 32]
    assert SliceSpec.from_json(spec.to_json()).options == spec.options
    for changes, words in (
        ({"rates": [4, 2]}, "serving.rates.*must rise"),
        ({"workload": "servin"}, "serving.workload.*Did you mean 'serving'"),
        ({"rate": [1]}, "Did you mean 'rates'"),
    ):
        with pytest.raises(ConfigError, match=words):
            complete_config({"serving": changes}, schema)
