from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from infopt.bench.slo import SLO
from infopt.config import EngineConfig
from infopt.errors import ResultError
from infopt.select import Recommendation, choose, read_recommendation, write_recommendation

Make = Callable[..., Any]
P90 = SLO(ttft_s=0.2, percentile=90)


@pytest.fixture
def recommendation(make_table: Make, make_run: Make, make_served: Make) -> Recommendation:
    config = {"max_num_seqs": 8, "kv_cache_memory_gib": 0.25}
    return choose(
        make_table(
            make_run("a", config=config, **make_served(5, interval=(4.8, 5.2))),
            make_run("b", config={"max_num_seqs": 4}, **make_served(4.9, interval=(4.7, 5.1))),
            make_run("c", **make_served(9, 0.4)),
        ),
        P90,
    )


def test_it_survives_writing_and_reading(recommendation: Recommendation, tmp_path: Path) -> None:
    path = write_recommendation(recommendation, tmp_path / "results" / "recommendation.yaml")
    assert read_recommendation(path) == recommendation


def test_nothing_feasible_survives_too(
    make_table: Make, make_run: Make, make_served: Make, tmp_path: Path
) -> None:
    found = choose(make_table(make_run("a", **make_served(5))), SLO(ttft_s=0.01, percentile=90))
    path = write_recommendation(found, tmp_path / "r.yaml")
    assert read_recommendation(path) == found
    assert "nothing: see nearest" in path.read_text()


def test_the_config_section_is_a_whole_engine_config(
    recommendation: Recommendation, tmp_path: Path
) -> None:
    path = write_recommendation(recommendation, tmp_path / "r.yaml")
    section = yaml.safe_load(path.read_text())["config"]
    config = EngineConfig.from_dict(section)
    assert config.to_dict() == section
    assert config == recommendation.engine_config()
    assert "swap_memory_gib: 1.0" in path.read_text()


def test_the_file_explains_itself(recommendation: Recommendation, tmp_path: Path) -> None:
    path = write_recommendation(recommendation, tmp_path / "r.yaml")
    header = [line for line in path.read_text().splitlines() if line.startswith("#")]
    text = "\n".join(header)
    assert "from infopt import LLM" in text and "r.yaml" in text
    assert recommendation.status in text
    assert all(len(line) <= 100 for line in header)


@pytest.mark.parametrize(
    ("section", "key"), [(None, "colour"), ("config", "max_num_seq"), ("slo", "ttft")]
)
def test_unknown_keys_are_refused(
    recommendation: Recommendation, tmp_path: Path, section: str | None, key: str
) -> None:
    path = write_recommendation(recommendation, tmp_path / "r.yaml")
    document = yaml.safe_load(path.read_text())
    (document if section is None else document[section])[key] = 1
    path.write_text(yaml.safe_dump(document))
    with pytest.raises(ResultError, match=rf"r\.yaml.*{key}") as caught:
        read_recommendation(path)
    assert caught.value.field == (key if section is None else f"{section}.{key}")


@pytest.mark.parametrize("text", ["", "[", "a: b", "- 1", "\x00"])
def test_broken_files_are_named(tmp_path: Path, text: str) -> None:
    path = tmp_path / "r.yaml"
    path.write_text(text)
    with pytest.raises(ResultError, match=r"r\.yaml"):
        read_recommendation(path)
    with pytest.raises(ResultError, match="make run"):
        read_recommendation(tmp_path / "absent.yaml")


def test_the_notebook_view_shows_evidence_and_escapes(recommendation: Recommendation) -> None:
    text = recommendation._repr_html_()
    assert "requests/s" in text and "TTFT p90 is 400 ms" in text
    assert "batching/c" in text
