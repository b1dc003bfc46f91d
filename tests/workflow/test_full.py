"""The whole pipeline on a tiny random model: every rule, every notebook, and the report."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from pipeline_run import jobs_of

pytestmark = [pytest.mark.workflow, pytest.mark.slow]
ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Where the pipeline has run with the configuration of the profile `ci`."""
    folder = tmp_path_factory.mktemp("full")
    snakemake(folder, "--cores", "2")
    return folder


def snakemake(folder, *arguments):
    done = subprocess.run(
        [
            sys.executable,
            *("-m", "snakemake", "--snakefile", str(ROOT / "Snakefile")),
            *("--configfile", str(ROOT / "config" / "ci.yaml")),
            *arguments,
        ],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
        timeout=1200,
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-6000:]
    return done.stdout + done.stderr


def test_everything_is_there(folder):
    results = folder / "results" / "ci"
    names = ("00_quickstart", "10_roofline", "20_batching", "30_quantization")
    names += ("40_kv_cache", "50_speculative", "60_moe_routing", "70_power_cost", "90_tradeoffs")
    for name in names:
        assert (results / "notebooks" / f"{name}.ipynb").is_file()
        assert "<html" in (results / "notebooks" / f"{name}.html").read_text()[:2000].lower()
    assert len(list((results / "figures").glob("*.png"))) == 24
    assert {p.stem for p in (results / "tables").glob("*.parquet")} == {
        "baseline",
        "batching",
        "quantization",
        "kv_cache",
        "speculative",
        "moe",
        "power",
        "serving",
        "select",
    }
    assert "config:" in (results / "recommendation.yaml").read_text()
    assert (results / "tables" / "durations.csv").read_text().count("\n") == 37


def test_a_second_run_has_nothing_to_do(folder):
    assert "Nothing to be done" in snakemake(folder, "--cores", "2")


def test_the_report_holds_figures_notebooks_and_captions(folder):
    snakemake(folder, "--report", "report.html")
    text = (folder / "report.html").read_text()
    figures = ("batching.scheduling.png", "serving.load.png")
    for part in ("recommendation.yaml", "20_batching.html", *figures):
        assert part in text
    # captions quote the settings of this run
    assert "Candidates static, continuous, each against static" in text
    assert "in turns (2 pairs" in text


def test_another_objective_gives_another_recommendation_from_the_same_measurements(folder):
    """Pins: goodput under the old objective was taken over, or everything was measured again."""
    results = folder / "results" / "ci"
    before = {path: path.read_bytes() for path in measured_before_select(results)}
    text = snakemake(folder, "--cores", "2", "--config", "slo={ttft_s: 50, percentile: 50}")
    assert jobs_of(text) == sorted([
        "stage_table",  # of batching, whose choice keeps limits; its winners stay
        *("serving_slice", "serving_table", "serving_figure"),
        *("capacity", "finalists", "choose_finalist", "validation"),
        *("recommend", "finalists_figure"),
        *["execute_notebook"] * 3,  # 00_quickstart, 20_batching, 90_tradeoffs
        "run_summary",
    ])  # fmt: skip
    assert before == {path: path.read_bytes() for path in measured_before_select(results)}
    document = yaml.safe_load((results / "recommendation.yaml").read_text())
    assert document["slo"]["ttft_s"] == 50
    tried = json.loads((results / "runs" / "select" / "finalists.composed.json").read_text())
    assert tried["slo"]["limits"]["ttft_s"] == 50
    assert tried["samples"]["requests.ttft_s"]


def measured_before_select(results):
    stages = ("baseline", "batching", "quantization", "kv_cache", "speculative", "moe", "power")
    return [path for stage in stages for path in (results / "runs" / stage).glob("*.json")]
