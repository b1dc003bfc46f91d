"""The page about the family says what the records say."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from infopt.models.registry import resolve_model
from infopt.training import LEARNED_SHARE, RECIPES
from infopt.training.text import KINDS
from infopt.training.tiny import RECORD_NAME

PAGE = (Path(__file__).parents[2] / "docs" / "tiny-models.md").read_text("utf-8")


@pytest.mark.parametrize("name", sorted(RECIPES))
def test_figures_are_those_of_the_record(name: str) -> None:
    folder = resolve_model(name, show_progress=False).path
    record = json.loads((folder / RECORD_NAME).read_text())
    for kind in KINDS:
        value = record["validation"][kind]
        perplexity, bigram = value["perplexity"], value["bigram_perplexity"]
        row = f"| `{name}` | {kind} | {perplexity:.1f} | {bigram:.1f} | {value['share']:.0%} |"
        assert row in PAGE
    assert f"| `{name}` | {record['num_steps']:,} | {record['num_tokens'] / 1e6:.1f} M |" in PAGE


@pytest.mark.parametrize("name", sorted(RECIPES))
def test_sizes_are_those_of_the_record(name: str) -> None:
    folder = resolve_model(name, show_progress=False).path
    record = json.loads((folder / RECORD_NAME).read_text())
    start = f"| `{name}` | {record['recipe']['model_type']},"
    (row,) = [line for line in PAGE.splitlines() if line.startswith(start)]
    for key in ("num_parameters", "num_active_parameters"):
        assert f"| {record[key] / 1e6:.2f} M |" in row


def test_the_limit_is_the_one_in_the_code() -> None:
    assert f"learned below {LEARNED_SHARE * 100:.0f} % of the bigram's" in PAGE.replace("\n", " ")
