"""Oracles and infopt measure the same perplexity on the same model."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from infopt import LLM
from infopt.errors import UnsupportedModelError
from infopt.evals.oracles.job import SOURCES, make_job
from infopt.evals.oracles.protocol import Job as TheirJob
from infopt.evals.perplexity import perplexity


def test_perplexity_of_transformers_is_that_of_infopt(
    tiny_model_dir: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A window shifted by one token, or a forgotten context, would be taken for a difference."""
    monkeypatch.setattr("infopt.evals.oracles.job.SCORED_TOKENS", 2048)
    folder = str(tiny_model_dir("llama"))
    job = make_job(folder)
    job.save(tmp_path / "job.npz")
    theirs = TheirJob(tmp_path / "job.npz")
    assert theirs.calibration.tolist() == job.calibration.tolist()
    found = theirs.perplexity(theirs.model())
    llm = LLM(folder, dtype="float32")
    assert set(found) == set(SOURCES)
    for source, value in found.items():
        ours = perplexity(llm, job.windows[source].windows, use_tqdm=False).token_perplexity
        assert value == pytest.approx(ours, rel=1e-5)


def test_a_file_is_no_model_for_oracles(smollm2_path: Path) -> None:
    with pytest.raises(UnsupportedModelError, match="folders of safetensors"):
        make_job(str(smollm2_path))
