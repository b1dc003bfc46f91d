"""The workflow's text: it parses, its dry runs plan what they should, and tools find no fault."""

import re
import subprocess
import sys

import pytest
from pipeline_run import ROOT, Pipeline

pytestmark = pytest.mark.workflow
MODELS = [
    "qwen3-30b-a3b",
    *(
        pytest.param(name, marks=pytest.mark.slow)
        for name in ("qwen3-8b", "llama-3.1-8b-instruct", "olmoe-1b-7b-instruct")
    ),
]


def dry_run(*arguments):
    return subprocess.run(
        [sys.executable, "-m", "snakemake", "--dry-run", "--cores", "2", "--forceall", *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )


def test_the_default_run_is_planned_in_full():
    done = dry_run()
    assert done.returncode == 0, done.stderr
    text = done.stdout + done.stderr
    for rule in ("fetch_model", "capacity", "finalists", "validation", "recommend", "run_summary"):
        assert f"rule {rule}:" in text
    assert text.count("rule batching_slice:") == 5
    assert text.count("rule quantization_slice:") == 3
    assert text.count("rule kv_cache_slice:") == 6
    assert text.count("rule speculative_slice:") == 4
    assert text.count("rule train_draft_head:") == 1
    assert text.count("rule moe_slice:") == 5
    assert text.count("rule power_slice:") == 3
    assert text.count("rule serving_slice:") == 1
    assert text.count("rule execute_notebook:") == 9


@pytest.mark.parametrize("model", MODELS)
def test_the_gpu_run_is_planned_for_every_model_without_a_gpu(model):
    done = dry_run(
        "--profile", "profiles/gpu", "--config", f"model={model}", "results_dir=results/other"
    )
    assert done.returncode == 0, done.stderr
    assert "gpu=1" in done.stdout + done.stderr
    assert "results/other/recommendation.yaml" in done.stdout + done.stderr


def test_lint_finds_nothing():
    done = subprocess.run(
        [sys.executable, "-m", "snakemake", "--lint"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_misspelt_key_ends_the_run_before_it_starts(pipeline: Pipeline):
    pipeline.config["quality_flor"] = "lossy"
    done = pipeline.run()
    assert done.returncode != 0
    assert "Unknown option 'quality_flor'" in done.stderr
    assert "Did you mean 'quality_floor'?" in done.stderr
    assert not (pipeline.folder / "results").exists()


def test_file_sizes_stay_readable():
    assert len((ROOT / "Snakefile").read_text().splitlines()) <= 50
    assert len((ROOT / "workflow/rules/common.smk").read_text().splitlines()) <= 150
    for script in (ROOT / "workflow" / "scripts").glob("*.py"):
        assert len(script.read_text().splitlines()) <= 60, script.name


def test_every_rule_says_what_it_needs():
    for path in sorted((ROOT / "workflow" / "rules").glob("*.smk")):
        for block in re.split(r"\n(?:rule|checkpoint) ", path.read_text())[1:]:
            name = block.split(":")[0]
            for directive in ("log", "benchmark", "threads", "resources", "params", "conda"):
                assert f"    {directive}:" in block, f"{name} has no {directive}"
