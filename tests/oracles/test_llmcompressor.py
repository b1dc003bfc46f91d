"""int4 by GPTQ and AWQ is no worse than llm-compressor's on the same weights and the same text.

`make oracles` records what llm-compressor reaches, in an environment of its own.
"""

from __future__ import annotations

import json
import platform
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from infopt import LLM
from infopt.evals.oracles.job import CALIBRATION, SOURCES, Job, make_job
from infopt.evals.perplexity import perplexity
from infopt.quantization.quantize import quantize_model

MODEL = "tiny-dense"
EXPECTED = Path(__file__).parents[1] / "data" / "oracles" / "llmcompressor.json"
SCHEMES = {
    "rtn": "int4-rtn-g64",
    "gptq": "int4-gptq-g64-inorder",
    "gptq-act": "int4-gptq-g64",
    "awq": "int4-awq-g64",
}
"""Their method -> our scheme, which codes the head too (in 8 bits; theirs stays float)."""

ALLOWED = 1.01
"""Largest ratio of our perplexity to theirs."""


@pytest.fixture(scope="module")
def recorded() -> dict[str, Any]:
    return json.loads(EXPECTED.read_text("utf-8"))


@pytest.fixture(scope="module")
def job(recorded: dict[str, Any]) -> Job:
    """The same model and text as then; text depends on the Python version."""
    made = make_job(MODEL)
    now = made.describe()
    assert now["model"] == recorded["model"], "the model is another one now: run `make oracles`"
    if any(now[part] != recorded[part] for part in ("calibration", "windows")):
        then, version = recorded["versions"]["python"], platform.python_version()
        assert then != version, "the text is another one now: run `make oracles`"
        pytest.skip(f"recorded on the text of Python {then}, this is {version}")
    return made


def measured(model: str, job: Job) -> dict[str, float]:
    llm = LLM(model, dtype="float32")
    return {
        source: perplexity(llm, job.windows[source].windows, use_tqdm=False).token_perplexity
        for source in SOURCES
    }


def test_the_float_model_is_the_same(job: Job, recorded: dict[str, Any]) -> None:
    """Else a difference below would be one of the measurement."""
    ours = measured(MODEL, job)
    for source, value in recorded["perplexity"]["float"].items():
        assert ours[source] == pytest.approx(value, rel=1e-4)


@pytest.fixture(scope="module")
def ours_by_method(job: Job, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Any]:
    """Quantize into a fresh folder: a cached one may be of an earlier state of the code."""
    folder = tmp_path_factory.mktemp("quantized")

    def measure(method: str) -> dict[str, float]:
        out = folder / method
        calibration = CALIBRATION.to_dict()
        quantize_model(MODEL, SCHEMES[method], out, calibration=calibration, progress=False)
        return measured(str(out), job)

    return measure


@pytest.mark.slow
@pytest.mark.parametrize("method", SCHEMES)
def test_perplexity_is_no_worse_than_theirs(
    method: str, ours_by_method: Callable[[str], Any], recorded: dict[str, Any]
) -> None:
    ours, theirs = ours_by_method(method), recorded["perplexity"][method]
    ratios = {source: ours[source] / theirs[source] for source in SOURCES}
    assert all(ratio <= ALLOWED for ratio in ratios.values()), ratios


def test_the_record_is_of_a_comparison_that_means_something(recorded: dict[str, Any]) -> None:
    """Their GPTQ must gain on rounding, and the settings must be those of our schemes."""
    found, settings = recorded["perplexity"], recorded["settings"]
    assert (settings["bits"], settings["group_size"], settings["symmetric"]) == (4, 64, True)
    for source in SOURCES:
        assert found["float"][source] < found["gptq"][source] < found["rtn"][source]
    assert recorded["calibration"]["num_sequences"] * recorded["calibration"]["length"] == 8192
