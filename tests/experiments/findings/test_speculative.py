"""What the notebook on speculation says follows from the numbers it is given."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pandas as pd
import pytest

from infopt.experiments.findings import speculative as findings
from infopt.experiments.findings import speculative_answer as answer
from infopt.experiments.findings.data import StageResults
from infopt.experiments.findings.miniature import miniature_specs
from infopt.experiments.findings.missing import Remark
from infopt.experiments.findings.speculative import SpeculativeStory

STAGE = "speculative"

NAMES = ("edit", "chat")
# workload, batch, temperature, looping: ratio of suffix, ratio of auto
CELLS: dict[tuple[int, int, float, int], tuple[float, float]] = {
    (0, 1, 0.0, 0): (2.5, 2.4),
    (0, 8, 0.0, 0): (0.9, 1.2),
    (0, 1, 1.0, 0): (1.5, 1.5),
    (1, 1, 0.0, 0): (1.02, 1.01),
    (1, 8, 0.0, 0): (0.8, 0.99),
    (0, 1, 0.0, 1): (8.0, 7.5),
}
WIDTH = 0.05
DECISIONS = ("learn", "off", "empty", "on", "probe")


def samples_of(slice_name: str, candidate: str, column: int, cells: Any) -> list[dict[str, Any]]:
    lists: dict[str, list[float]] = {}
    for (workload, batch, temperature, looping), ratios in cells.items():
        ratio = ratios[column]
        cell = {
            "workload": workload,
            "batch": batch,
            "temperature": temperature,
            "is_degenerate": looping,
            "ratio": ratio,
            "low": ratio - WIDTH,
            "high": ratio + WIDTH,
            "num_pairs": 6,
            "alpha": 0.8,
            "mean_length": 4.0,
            "tokens_per_pass": 2.0,
            "predicted": ratio * (1.3 if workload == 1 and batch == 8 else 1.02),
            "formula": ratio * 1.5,
            "verify_cost": 1.4,
            "draft_cost": 0.01,
            **{f"steps_{name}": float(name == "on") * 50 for name in DECISIONS},
        }
        for name, value in cell.items():
            lists.setdefault(f"cells.{name}", []).append(float(value))
        index = len(lists["cells.ratio"]) - 1
        for position, (made, kept) in enumerate(((100, 80), (100, 60), (40, 20)), start=1):
            values = {"cell": index, "position": position, "proposed": made, "accepted": kept}
            for name, value in values.items():
                lists.setdefault(f"positions.{name}", []).append(float(value))
    return [
        {
            "run": f"speculative/{slice_name}.{candidate}",
            "stage": "speculative",
            "slug": f"{slice_name}.{candidate}",
            "name": name,
            "index": i,
            "value": value,
        }
        for name, values in lists.items()
        for i, value in enumerate(values)
    ]


@pytest.fixture
def story(row: Callable[..., dict[str, Any]]) -> SpeculativeStory:
    ratio = {
        f"comparison.output_tokens_per_s.{k}": v
        for k, v in {"median": 1.01, "low": 0.98, "high": 1.04}.items()
    }
    facts = {
        "extra.num_cells": 5,
        "extra.cell_workloads": " ".join(NAMES),
        "extra.looping_share": 0.25,
    }
    table = pd.DataFrame(
        [
            row("speculation", "off", 0),
            row("speculation", "auto", 1, **ratio),
            row("methods", "off", 0),
            row("methods", "suffix", 1, **facts),
            row("methods", "auto", 2, **facts),
            row("float_target", "auto", 1, **(facts | {"extra.num_cells": 1})),
        ]
    )
    floats = {(0, 1, 0.0, 0): (3.0, 3.0)}
    samples = pd.DataFrame(
        [
            *samples_of("methods", "suffix", 0, CELLS),
            *samples_of("methods", "auto", 1, CELLS),
            *samples_of("float_target", "auto", 1, floats),
        ]
    )
    chosen = {
        "speculation": {
            "chosen": "auto",
            "status": "undecided",
            "reason": "It was preferred.",
            "reference": "off",
        }
    }
    return SpeculativeStory(StageResults(table, samples, chosen, "note", is_miniature=False))


def test_cells_have_names_verdicts_and_no_looping_answers(story: SpeculativeStory) -> None:
    auto = story.of("auto")
    assert list(auto["traffic"]) == ["edit", "edit", "edit, temperature 1", "chat", "chat"]
    assert list(auto["verdict"]) == ["better", "better", "better", "undecided", "undecided"]
    assert list(story.of("suffix")["verdict"]) == [
        *("better", "worse", "better", "undecided", "worse")
    ]
    assert story.methods == ["suffix", "auto"]
    assert story.workloads == ["edit", "chat"]
    assert len(story.looping) == 2
    assert not story.cells["is_degenerate"].any()


def test_few_pairs_decide_nothing(story: SpeculativeStory) -> None:
    samples = story.data.samples.copy()
    samples.loc[samples["name"] == "cells.num_pairs", "value"] = 3
    few = SpeculativeStory(replace(story.data, samples=samples))
    assert set(few.cells["verdict"]) == {"undecided"}


def test_positions_hold_shares(story: SpeculativeStory) -> None:
    own = story.positions
    first = own.loc[(own["candidate"] == "auto") & (own["position"] == 1)]
    assert set(first["rate"]) == {0.8}
    assert not own["is_degenerate"].any()


def test_sentences_quote_the_numbers(story: SpeculativeStory) -> None:
    assert findings.gain_sentence(story, "edit") == (
        "`edit`: best is `suffix` with 2.50x [2.45, 2.55] at one sequence, and 0.90x [0.85, 0.95] "
        "at 8 sequences."
    )
    assert "not measured" in findings.gain_sentence(story, "code")
    assert findings.gain_sentences(story).count("\n- `chat`: best is `suffix` with 1.02x") == 1
    assert findings.fade_sentence(story) == (
        "- `suffix` on `edit` gains at one sequence and loses from 8 on.\n"
        "- `suffix` on `chat` gains at no size for certain and loses from 8 on."
    )
    assert "9 of 11 cells lie within 10%" in findings.formula_sentence(story)
    assert "on chat at 8 sequences" in findings.formula_sentence(story)
    assert findings.auto_sentence(story) == (
        "`auto` lost in 0 of 5 cells; it reached 99% (median) of the better of off and the best "
        "method that always guesses, 96% at worst."
    )


def test_a_loss_of_auto_is_told(story: SpeculativeStory) -> None:
    samples = story.data.samples.copy()
    own = (samples["slug"] == "methods.auto") & (samples["index"] == 4)
    for name, value in (("ratio", 0.8), ("low", 0.7), ("high", 0.9)):
        samples.loc[own & (samples["name"] == f"cells.{name}"), "value"] = value
    worse = SpeculativeStory(replace(story.data, samples=samples))
    assert "lost in 1 of 5 cells (chat at 8 (0.80x [0.70, 0.90]))" in findings.auto_sentence(worse)


def test_the_answer_says_where_and_what(story: SpeculativeStory) -> None:
    text = answer.answer(story)
    assert "own traffic: **`auto`**, throughput 1.01x [0.98, 1.04] against off" in text
    assert "**turn it on** for edit (2.50x with `suffix` at one sequence), edit, temp" in text
    assert "nothing for certain from chat" in text
    off = {"speculation": dict(story.chosen, chosen="off", reason="auto loses.")}
    text = answer.answer(SpeculativeStory(replace(story.data, chosen=off, is_miniature=True)))
    assert "**leave it off**. auto loses." in text
    assert "miniature" in text


def test_looping_answers_and_float_weights_are_told_apart(story: SpeculativeStory) -> None:
    text = answer.looping_sentence(story)
    assert "25% of the answers looped" in text
    assert "`suffix` reached 8.00x" in text
    assert answer.float_sentence(story) == (
        "edit at 1: 3.00x [2.95, 3.05] with unquantized weights, 2.40x [2.35, 2.45] with the "
        "chosen ones."
    )


def test_drafters_with_a_model_are_listed(story: SpeculativeStory) -> None:
    assert answer.pair_sentence(story) == "Drafters with a model are not part of this run."
    table = story.data.table.replace({"extra.slice": {"float_target": "tiny_pair"}})
    pair = SpeculativeStory(replace(story.data, table=table))
    assert answer.pair_sentence(pair) == (
        "- `auto`, edit, 1 at once: 3.00x [2.95, 3.05], 2.00 tokens per pass; a proposal takes "
        "0.01 steps, verifying 1.40"
    )


def test_a_draft_head_is_shown_where_it_was_measured(story: SpeculativeStory) -> None:
    assert answer.head_sentence(story) == "A draft head is not part of this run."
    table = story.data.table.copy()
    table.loc[table["extra.slice"] == "float_target", "extra.candidate"] = "draft_head"
    head = SpeculativeStory(replace(story.data, table=table))
    assert answer.head_sentence(head).startswith("- `draft_head`, edit, 1 at once: 3.00x")


def test_plots_and_tables_come_from_the_run(story: SpeculativeStory) -> None:
    title = answer.gain_axes(story, "edit").get_figure().get_suptitle()  # type: ignore[union-attr]
    assert title.replace("\n", " ") == "edit: suffix 2.50x at 1, 0.90x at 8"
    assert isinstance(answer.gain_axes(story, "code"), Remark)
    assert isinstance(answer.traffic_axes(story, "ngram"), Remark)
    assert isinstance(answer.position_axes(story, "ngram"), Remark)
    assert answer.traffic_axes(story).has_data()  # type: ignore[union-attr]
    assert answer.decision_axes(story).has_data()  # type: ignore[union-attr]
    assert answer.formula_axes(story).has_data()
    html = answer.cells_table(story).to_html()
    assert "edit, temperature 1" in html
    assert "2.50x [2.45, 2.55]" in html
    answer.check(story)


@pytest.mark.parametrize(("name", "value"), [("low", 9.0), ("tokens_per_pass", 6.0)])
def test_a_run_that_contradicts_ends_the_notebook(story, name: str, value: float) -> None:
    samples = story.data.samples.copy()
    samples.loc[samples["name"] == f"cells.{name}", "value"] = value
    with pytest.raises(AssertionError):
        answer.check(SpeculativeStory(replace(story.data, samples=samples)))


def test_the_miniature_asks_the_same_in_small() -> None:
    specs = {spec.name: spec for spec in miniature_specs("speculative", "some-model")}
    assert set(specs) == {"speculation", "methods"}
    assert specs["speculation"].prefers == "auto"
    assert {c["workload"] for c in specs["methods"].options["cells"]} == {"edit", "chat"}
    assert {spec.model for spec in specs.values()} == {"some-model"}
