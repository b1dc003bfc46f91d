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
