"""Engine options from a file: a recommendation of another machine is served with a warning."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from infopt.cli.engine import build_config, read_engine_section
from infopt.hardware import fingerprint
from infopt.results.identity import hardware_id


@pytest.fixture
def recommendation(tmp_path: Path):
    def make(machine: str) -> Path:
        document = {
            "config": {"model": "tiny", "max_num_seqs": 3},
            "hardware_id": machine,
            "hardware": {"cpu_model": "Some CPU"},
        }
        path = tmp_path / "recommendation.yaml"
        path.write_text(yaml.safe_dump(document))
        return path

    return make


def test_a_recommendation_of_another_machine_is_warned_about(recommendation, capsys) -> None:
    config = build_config(None, recommendation("elsewhere"), {})
    assert config.max_num_seqs == 3
    words = " ".join(capsys.readouterr().err.split())
    assert "measured on another machine (elsewhere, Some CPU" in words


def test_a_recommendation_of_this_machine_is_not(recommendation, capsys) -> None:
    here = hardware_id(fingerprint())
    assert read_engine_section(recommendation(here))["max_num_seqs"] == 3
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    ("measured", "is_warned"),
    [
        ({"gpus": ["H200"]}, False),
        ({"gpus": ["H200", "H200", "H200"]}, True),
        ({"gpus": ["A100"]}, True),
        ({"gpus": []}, True),
        ({"gpus": ["H200"], "num_cores": 4}, True),
        ({"gpus": "H200"}, True),
    ],
)
def test_the_one_gpu_of_a_job_is_a_part_of_this_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys, measured, is_warned
) -> None:
    """Pins: a job sees one of several GPUs, so its own machine was another one when it served."""
    here = {"cpu_model": "Some CPU", "num_cores": 8, "gpus": ["H200", "H200"], "hardware_id": "all"}
    monkeypatch.setattr("infopt.hardware.fingerprint", lambda: here)
    document = {
        "config": {"model": "tiny"},
        "hardware_id": "one",
        "hardware": {**here, "hardware_id": "one", **measured},
    }
    path = tmp_path / "recommendation.yaml"
    path.write_text(yaml.safe_dump(document))
    read_engine_section(path)
    assert ("another machine" in capsys.readouterr().err) == is_warned
