"""Real runs of the pipeline: nothing needlessly, nothing lost, never two timings at once."""

import json
import os
import shutil
import signal
import subprocess
import time
from pathlib import Path

import pytest
from pipeline_run import LONG, Pipeline, check, jobs_of, small_config

pytestmark = pytest.mark.workflow

TABLE = "results/tables/batching.parquet"
FIGURE = "results/figures/batching.page_size.png"
MANIFEST = "results/slices/batching/page_size.json"
RECORDS = "results/runs/batching"
STEPS = ["batching_slice", "slice_figure", "stage_table"]
SLOW = pytest.mark.slow


@pytest.fixture(scope="module")
def finished(tmp_path_factory) -> Pipeline:
    """A folder in which baseline, one question of batching and its figure have run."""
    pipeline = Pipeline(tmp_path_factory.mktemp("finished"), small_config())
    check(pipeline.run(FIGURE, env={"DISPLAY": ""}))
    return pipeline


@pytest.fixture
def copy(finished, tmp_path) -> Pipeline:
    """A copy of the finished folder that a test may change."""
    folder = tmp_path / "copy"
    shutil.copytree(finished.folder, folder, ignore=shutil.ignore_patterns("tmp"))
    return Pipeline(folder, small_config())


def manifest(pipeline):
    return json.loads((pipeline.folder / MANIFEST).read_text())


def test_a_run_leaves_records_manifest_table_choice_and_logs(finished):
    results = finished.folder / "results"
    records = sorted(p.name for p in (results / "runs" / "batching").iterdir())
    assert records == sorted(f"{slug}.json" for slug in manifest(finished)["records"])
    assert (results / "chosen" / "batching.yaml").is_file()
    assert "tokens/s" in (results / "logs" / "batching" / "page_size.log").read_text()
    assert (results / "benchmarks" / "batching.page_size.tsv").is_file()


def test_long_names_become_file_names_that_every_system_takes(finished):
    """Pins: a file name of more than 255 bytes failed a job that had succeeded."""
    names = [p.name for p in (finished.folder / "results").rglob("*")]
    assert max(len(name.encode()) for name in names) < 200
    record = json.loads(
        (finished.folder / RECORDS / f"{manifest(finished)['records'][1]}.json").read_text()
    )
    assert record["extra"]["candidate"] == LONG  # the whole name is inside


def test_nothing_is_done_twice(finished):
    """Pins: parameters with a random path, a time or the order of a set made runs start over."""
    assert finished.planned(FIGURE) == []
    assert finished.planned(FIGURE, env={"PYTHONHASHSEED": "12345"}) == []


def test_touching_files_reruns_nothing_and_a_changed_value_what_depends_on_it(copy):
    """Pins: checksums overrule time stamps, which surprised in both directions."""
    (copy.folder / "config.yaml").touch()
    os.utime(copy.folder / "results" / "models" / "model.json")
    assert copy.planned(FIGURE) == []
    copy.config["batching"]["page_size"] |= {"repeats": 2}
    assert copy.planned(FIGURE) == STEPS


def test_another_objective_measures_nothing_again_that_does_not_depend_on_it(copy):
    """Pins: a changed limit started every measurement over."""
    copy.config["slo"] = {"ttft_s": 30, "percentile": 50}
    assert copy.planned(FIGURE) == []


LIMITED = {"slo_limits": ["ttft_s"], "prefers": "page-16"}


def test_a_limit_on_the_choice_measures_nothing_again(copy):
    """Pins: what only decides between measured candidates was part of the measuring job."""
    copy.config["batching"]["page_size"] |= LIMITED
    assert copy.planned(FIGURE) == ["slice_figure", "stage_table"]


def test_what_starts_from_an_unchanged_choice_does_not_run(finished, tmp_path):
    """Pins: a choice that was made again had all that starts from it measured again."""
    folder = tmp_path / "chain"
    shutil.copytree(finished.folder, folder, ignore=shutil.ignore_patterns("tmp"))
    chain = Pipeline(folder, small_config())
    schemes = {"candidates": [{"slug": "none", "engine": {}}], "reference": "none"}
    schemes |= {"quality_tier": None, "latency_workload": None, "measure_steps": False}
    chain.config["quantization"] = {"schemes": schemes}
    last = "results/slices/kv_cache/compression.json"
    kept = {"candidates": [{"slug": "auto", "engine": {}}], "long_text": None}
    kept |= {"workload": "steady"}
    chain.config["kv_cache"] = {"compression": kept}
    check(chain.run(last))
    chain.config["batching"]["page_size"] |= LIMITED
    planned = chain.planned(last)  # what might have to run, as nobody knows the choice yet
    assert planned == ["kv_cache_slice", "quantization_slice", "stage_table", "stage_table"]
    done = chain.run(last)
    check(done)
    assert jobs_of(done.stdout + done.stderr) == ["stage_table"]
    assert chain.planned(last) == []


def test_a_setting_of_another_question_reruns_nothing_here(copy):
    copy.config["select"] |= {"validation_seeds": [7]}
    copy.config["time_budget_s"] = {"batching": 1}
    copy.config["workloads"]["serving"] = copy.config["workloads"]["serving"] | {"num_requests": 3}
    assert copy.planned(FIGURE) == []


def test_a_forced_step_with_new_numbers_rebuilds_the_figure(copy):
    for path in (copy.folder / RECORDS).iterdir():
        path.unlink()
    before = (copy.folder / FIGURE).read_bytes()
    # A display that nobody answers: plots must not ask for one.
    env = {"DISPLAY": ":99", "MPLBACKEND": "TkAgg"}
    check(copy.run("--forcerun", "batching_slice", "--", FIGURE, env=env))
    assert manifest(copy)["num_resumed"] == 0
    assert (copy.folder / FIGURE).read_bytes() != before
    assert (copy.folder / FIGURE).read_bytes().startswith(b"\x89PNG")


KILLS = [
    pytest.param("everything", [], id="everything"),
    pytest.param("everything", ["--keep-incomplete"], id="everything-kept", marks=SLOW),
    pytest.param("script", [], id="script", marks=SLOW),
    pytest.param("script", ["--keep-incomplete"], id="script-kept", marks=SLOW),
]


@pytest.mark.parametrize(("victim", "options"), KILLS)
def test_a_killed_measurement_leaves_no_half_of_a_result(copy, victim, options):
    """Pins: a half-written output counted as complete, or all measurements went with the job."""
    for made in (
        MANIFEST,
        TABLE,
    ):  # a missing manifest alone is not missed while its table is there
        (copy.folder / made).unlink()
    kept, lost = (copy.folder / RECORDS / f"{slug}.json" for slug in manifest_records(copy))
    lost.unlink()
    log = copy.folder / "results" / "logs" / "batching" / "page_size.log"
    log.unlink()
    process = subprocess.Popen(
        copy.command(*options, "--", TABLE),
        cwd=copy.folder,
        env=copy.environment(),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    wait_for(lambda: "already measured" in log.read_text())
    if victim == "script":
        for number in script_processes(copy.folder):
            os.kill(number, signal.SIGKILL)
        assert process.wait(120) == 1  # Snakemake sees it and ends
    else:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait(30)
    assert not (copy.folder / MANIFEST).exists()
    assert kept.is_file()
    assert "already measured" in log.read_text()
    for path in (copy.folder / RECORDS).glob("*.json"):
        json.loads(path.read_text())  # complete, or not there
    if victim == "everything":
        check(copy.run("--unlock", "--"))
    check(copy.run(TABLE))
    assert manifest(copy)["num_resumed"] >= 1
    assert lost.is_file()


def script_processes(folder):
    """Return the processes of a measuring script that runs in a folder, its shell included."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            command = (entry / "cmdline").read_bytes()
            if b"run_slice.py" in command and (entry / "cwd").resolve() == folder.resolve():
                found.append(int(entry.name))
        except OSError:
            continue  # it has ended meanwhile
    assert found
    return found


def manifest_records(pipeline):
    names = sorted((pipeline.folder / RECORDS).iterdir(), key=lambda p: len(p.name))
    return [p.stem for p in names]


@pytest.mark.parametrize("options", [[], pytest.param(["--keep-incomplete"], marks=SLOW)])
def test_a_failed_candidate_fails_the_job_and_the_next_run_retries_it(copy, options):
    """Pins: a crashed run was turned into an empty file, so the workflow called it a success."""
    entry = copy.config["batching"]["page_size"]
    broken = {"slug": "no-room", "engine": {"num_kv_pages": 1, "block_size": 4}}
    copy.config["batching"]["page_size"] = entry | {
        "candidates": [*entry["candidates"][:1], broken]
    }
    done = copy.run(*options, "--", TABLE)
    assert done.returncode != 0
    assert "1 of 2 runs of batching/page_size failed: page_size.no-room" in done.stderr
    assert not (copy.folder / MANIFEST).exists()
    record = json.loads((copy.folder / RECORDS / "page_size.no-room.json").read_text())
    assert record["identity"]["status"] == "failed"
    log = (copy.folder / "results" / "logs" / "batching" / "page_size.log").read_text()
    assert "MeasurementError" in log
    broken["engine"] = {"block_size": 4}
    check(copy.run(TABLE))
    assert manifest(copy)["num_resumed"] == 1


GPU_CASES = [
    pytest.param(1, "", id="cpu"),
    pytest.param(2, "0", id="one-gpu-for-two", marks=SLOW),
    pytest.param(1, "0,1", id="two-gpus-one-at-a-time", marks=SLOW),
    pytest.param(2, "0,1", id="two-gpus-at-once", marks=SLOW),
]


@pytest.mark.parametrize(("slots", "gpu_ids"), GPU_CASES)
def test_two_measurements_never_share_a_device(copy, slots, gpu_ids):
    """Pins: unlimited by default, timing jobs overlapped; parallel jobs all took the first GPU."""
    pages = copy.config["batching"]["page_size"]
    copy.config["batching"] = dict.fromkeys(("page_size", "max_num_seqs"), pages)
    copy.config["measure_slots"] = slots
    for path in (copy.folder / RECORDS).iterdir():
        path.unlink()
    done = copy.run(
        "--forcerun", "batching_slice", "--", TABLE, env={"INFOPT_GPU_IDS": gpu_ids}, cores=4
    )
    check(done)
    folder = copy.folder / "results" / "slices" / "batching"
    first, second = sorted(
        (json.loads(path.read_text()) for path in folder.iterdir()), key=lambda m: m["started"]
    )
    if slots == 1 or first["device"] == second["device"]:
        assert first["ended"] <= second["started"]
    names = {f"gpu-{i}" for i in gpu_ids.split(",")} if gpu_ids else {"cpu"}
    assert {first["device"], second["device"]} <= names
    for path in (copy.folder / RECORDS).iterdir():
        assert json.loads(path.read_text())["extra"]["device"] in names


def wait_for(condition, timeout_s=180):
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        try:
            if condition():
                return
        except OSError:
            pass
        time.sleep(0.02)
    raise AssertionError("nothing happened in time")
