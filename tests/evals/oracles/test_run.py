"""Environments of oracles, and what happens when one fails."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import pytest
import torch

from infopt.errors import ConfigError, DependencyError, MeasurementError
from infopt.evals.oracles import run
from infopt.evals.oracles.job import Job
from infopt.evals.oracles.run import ORACLES, Site, ask
from infopt.evals.windows import Window, WindowSet

ROOT = Path(__file__).parents[3]
REQUIREMENTS = ROOT / "envs" / "oracles"
NAME = ORACLES[0]


@pytest.mark.parametrize("name", ORACLES)
def test_every_oracle_has_a_script_and_exact_requirements(name: str) -> None:
    """An open range lets an expectation depend on the day, and fetches torch for a GPU."""
    assert (run.SCRIPTS / f"oracle_{name}.py").exists()
    lines = (REQUIREMENTS / f"{name}.txt").read_text("utf-8").splitlines()
    pins = [line for line in lines if line and not line.startswith("#")]
    assert all(line.count("==") == 1 for line in pins)
    assert "torch==2.13.0" in pins  # no local label: any index can serve it


def test_an_unknown_oracle_names_the_nearest(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no oracle 'llmcompresor'") as caught:
        Site(tmp_path, REQUIREMENTS).python("llmcompresor")
    assert "llmcompressor" in str(caught.value)


def test_a_missing_file_of_requirements_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="has no file of requirements") as caught:
        Site(tmp_path, tmp_path).python(NAME)
    assert caught.value.field == "requirements"


@pytest.mark.slow
def test_an_environment_is_kept_until_its_requirements_change(tmp_path: Path) -> None:
    wanted = tmp_path / f"{NAME}.txt"
    wanted.write_text("# nothing\n")
    site = Site(tmp_path / "environments", tmp_path)
    site.environments.mkdir()
    python = site.python(NAME)
    assert python.exists()
    mark = python.parents[1] / "mark"
    mark.touch()
    assert site.python(NAME) == python
    assert mark.exists()
    wanted.write_text("# something else\n")
    site.python(NAME)
    assert not mark.exists()


@pytest.mark.slow
def test_a_failed_installation_is_no_environment(tmp_path: Path) -> None:
    """Without the stamp the next run would take what is half there for the whole."""
    (tmp_path / f"{NAME}.txt").write_text("./nowhere/nothing-1.0-py3-none-any.whl\n")
    site = Site(tmp_path, tmp_path)
    with pytest.raises(DependencyError, match="cannot be installed") as caught:
        site.python(NAME)
    assert not (tmp_path / NAME / "requirements.txt").exists()
    assert (tmp_path / f"{NAME}.install.log").name in str(caught.value.remedy)


@pytest.fixture
def job(tmp_path: Path) -> Job:
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    windows = WindowSet((Window((1, 2, 3), 2), Window((4, 5, 6), 2)), "by hand")
    return Job("model", folder, torch.tensor([[7, 8]]), {"docs": windows})


@pytest.fixture
def scripts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Folder where the scripts of oracles are looked for, with the protocol in it."""
    folder = tmp_path / "scripts"
    folder.mkdir()
    shutil.copy(run.SCRIPTS / "protocol.py", folder)
    monkeypatch.setattr(run, "SCRIPTS", folder)
    return folder


def test_the_answer_says_what_went_in(job: Job, scripts: Path, tmp_path: Path) -> None:
    (scripts / "oracle_echo.py").write_text(
        "PACKAGES = ('torch',)\n"
        "def run(job):\n"
        "    return {'perplexity': {'rows': job.calibration.tolist(), 'folder': job.folder}}\n"
    )
    found = ask("echo", job, Path(sys.executable), tmp_path)
    assert found["oracle"] == "echo"
    assert found["perplexity"] == {"rows": [[7, 8]], "folder": str(job.folder)}
    assert found["versions"]["torch"].startswith("2.")
    assert found["windows"]["docs"]["protocol"] == "by hand"
    assert found["model"]["name"] == "model"
    assert str(tmp_path) not in str({k: v for k, v in found.items() if k != "perplexity"})


def test_a_failed_oracle_gives_its_last_words(job: Job, scripts: Path, tmp_path: Path) -> None:
    """An answer of an earlier run must not pass for this one's."""
    (tmp_path / "broken.json").write_text("{}")
    (scripts / "oracle_broken.py").write_text(
        "PACKAGES = ()\ndef run(job):\n    raise ValueError('no such layer')\n"
    )
    with pytest.raises(MeasurementError, match="code 1: ValueError: no such layer") as caught:
        ask("broken", job, Path(sys.executable), tmp_path)
    assert "broken.log" in str(caught.value.remedy)
    assert not (tmp_path / "broken.json").exists()


def test_other_text_or_weights_change_the_description(job: Job, tmp_path: Path) -> None:
    before = job.describe()
    others = [
        Job(job.model, job.folder, job.calibration + 1, job.windows),
        Job(job.model, job.folder, job.calibration, {"docs": WindowSet((Window((1, 2), 1),), "x")}),
    ]
    assert all(other.describe() != before for other in others)
    (job.folder / "config.json").write_text('{"other": 1}')
    assert job.describe() != before
