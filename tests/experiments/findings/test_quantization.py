"""What the quantization notebook says follows from the numbers it is given."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from infopt.errors import ResultError
from infopt.experiments.findings import quantization, story
from infopt.experiments.findings import quantization_answer as answer
from infopt.experiments.findings import quantization_quality as quality
from infopt.experiments.findings.miniature import miniature_specs
from infopt.experiments.findings.missing import Remark
from infopt.experiments.findings.quantization import (
    QuantizationStory,
    weight_bytes,
)
from infopt.experiments.findings.tables import shown_ratio
from infopt.experiments.yaml_files import write_yaml
from infopt.select import FLOORS


def change(story: QuantizationStory, candidate: str, column: str, value: Any) -> QuantizationStory:
    """Return the story with one number of a scheme replaced."""
    table = story.data.table.copy()
    where = (table["extra.slice"] == "schemes") & (table["extra.candidate"] == candidate)
    table.loc[where, column] = value
    return QuantizationStory(replace(story.data, table=table), story.floor)


def test_bits_come_from_the_scheme_or_from_what_a_step_reads(quantization_story):
    rows = quantization_story.rows("schemes")
    bits = dict(zip(rows["extra.candidate"], rows["extra.bits"], strict=True))
    assert bits["none"] == 32
    assert bits["int8"] == 8
    assert bits["q4_1"] == pytest.approx(5), "recorded nowhere, read off the steps"
    assert list(rows["extra.candidate"])[rows["extra.is_stored"].tolist().index(True)] == "q4_1"
    assert not rows["extra.is_dequantized"].any()
    assert quantization_story.unrounded == "none (float32)"


def test_a_step_reads_its_weights_whatever_its_size(quantization_story):
    curve = quantization_story.curve("schemes", "int8", "decode_")
    assert weight_bytes(curve) == pytest.approx(1e6)
    assert pd.isna(weight_bytes(curve.iloc[:1]))


def test_the_marks_of_a_scheme_are_read_from_the_record(quantization_story):
    story = change(quantization_story, "int8", "extra.on_stored_grid", value=True)
    story = change(story, "mixed-5", "extra.quantization_path", "dequantized, packed")
    rows = story.rows("schemes").set_index("extra.candidate")
    assert rows.loc["int8", "extra.is_stored"]
    assert rows.loc["mixed-5", "extra.is_dequantized"]
    with pytest.raises(ResultError, match="no slice 'scheme'"):
        story.rows("scheme")


def test_the_floor_marks_what_may_be_chosen(quantization_story):
    marked = quantization_story.marked
    kept = marked.loc[marked["feasible"].astype(bool), "extra.candidate"]
    assert list(kept) == ["none", "q4_1", "int8"]
    assert "KL" in quantization_story.scheme("w8a8-dynamic")["reasons"]


def test_ratios_are_shown_as_finely_as_they_differ(quantization_story):
    row = quantization_story.scheme("int8")
    assert shown_ratio(row, "comparison.output_tokens_per_s") == "2.00x [1.90, 2.10]"
    assert shown_ratio(row, "quality.perplexity_ratio.docs") == "1.005x [1.002, 1.010]"
    assert shown_ratio({}, "quality.perplexity_ratio.docs") == "not measured"


def test_the_order_names_neighbours_that_overlap(quantization_story):
    text = quality.order_sentence(quantization_story, "schemes")
    assert text.startswith(
        "From least to most lost (KL in nats): `none` 0, `q4_1` 0, `int8` 0.005, "
        "`w8a8-dynamic` 0.05, `int4-gptq-g64` 0.08, `mixed-5` 0.09, `w8a8-static` 0.5."
    )
    assert text.endswith("is open, between `int4-gptq-g64` and `mixed-5`.")
    alone = quality.order_sentence(quantization_story, "float_trained")
    assert "overlap" not in alone


def test_the_cliff_is_growth_against_that_of_noise(quantization_story):
    assert quality.kl_by_width(quantization_story) == {8: 0.001, 4: 0.03, 3: 0.15}
    text = quality.cliff_sentence(quantization_story)
    assert "from 8 to 4 bits 30x (noise alone: about 256x)" in text
    assert "from 4 to 3 bits 5x (noise alone: about 4x)" in text
    assert text.endswith("by rounding alone: int8.")


def test_the_first_task_to_break_is_the_one_at_the_smallest_divergence(quantization_story):
    assert set(quality.first_broken(quantization_story)) == {"code"}
    assert quality.tasks_sentence(quantization_story) == (
        "In the order in which they break as the KL grows: **code** with `w8a8-static` (KL 0.5, "
        "score 70%, reference at least 80%)."
    )
    earlier = change(quantization_story, "w8a8-dynamic", "quality.tasks.code.score", 0.79)
    assert quality.first_broken(earlier)["code"]["extra.candidate"] == "w8a8-dynamic"
    assert quality.items_sentence(quantization_story) == "Items per task: code 40."
    table = quality.task_table(quantization_story)
    assert table["scheme"].iloc[0] == "none"
    assert len(table) == 7


def test_that_no_task_broke_is_said(lone_schemes):
    assert "No scheme scored below" in quality.tasks_sentence(lone_schemes)


def test_plots_of_quality_have_their_floors(quantization_story):
    axes = quality.bits_axes(quantization_story, "schemes")
    names = [text.get_text() for text in axes.texts]
    assert {"floor 0.02", "lossy 0.1"} <= set(names)
    ratio = "quality.perplexity_ratio.docs.ratio"
    names = [t.get_text() for t in quality.bits_axes(quantization_story, "schemes", ratio).texts]
    assert {"floor 1.02x", "lossy 1.1x"} <= set(names)
    lossy = QuantizationStory(quantization_story.data, FLOORS.get("lossy"))
    assert list(lossy.limits) == ["floor 0.1"], "one floor, one line"
    assert quality.tasks_axes(quantization_story).has_data()
    quality.check(quantization_story)
    table = quality.quality_table(quantization_story, "float_trained")
    assert table["bits per weight"].tolist() == ["32", "8", "4.5", "3.5"]


def test_the_answer_has_price_gain_end_and_alternatives(quantization_story):
    text = answer.answer(quantization_story)
    assert (
        "Use **`int8`**, 8 bits per weight: the best that keeps the quality floor (3 of 7" in text
    )
    assert "**Its price:** 0.005 [0.0045, 0.0055] nats" in text
    assert "against `none (float32)`, a decode step of 1 is 2.50x [" in text
    assert (
        "the throughput is 2.00x [1.90, 2.10] (better), its weights take 33% of the memory" in text
    )
    assert "The fastest under load was `int4-gptq-g64`, 3.00x [2.85, 3.15]. Why not that: " in text
    assert "Mean KL to the reference is 0.08 nats, the limit is 0.02 nats" in text
    assert "A lossy floor (KL 0.1, perplexity 1.1x) would allow `int4-gptq-g64`: 4.5 bits" in text
    assert "miniature" not in text
    assert (
        "**Where the gain ends:** not up to 4 sequences, the most that were measured; bytes and "
        in text
    )
    assert "alone would halve it at 16" in text
    answer.check(quantization_story)


def test_a_gain_that_is_none_in_single_steps_is_told(quantization_story):
    chosen = {"schemes": dict(quantization_story.data.chosen["schemes"], chosen="w8a8-dynamic")}
    data = replace(quantization_story.data, chosen=chosen)
    text = answer.answer(QuantizationStory(data, quantization_story.floor))
    assert "a step of 1 is not faster beyond doubt to begin with" in text


def test_keeping_the_weights_as_they_are_has_no_price_to_tell(lone_schemes):
    chosen = {
        "schemes": dict(lone_schemes.data.chosen["schemes"], chosen="none", status="undecided")
    }
    story = QuantizationStory(replace(lone_schemes.data, chosen=chosen), lone_schemes.floor)
    text = answer.answer(story)
    assert "Use **`none`**" in text
    assert "cannot tell it from others" in text
    assert "price" not in text
    assert "it keeps the floor, but is not better beyond doubt" in text
    assert "miniature" in text


def test_every_scheme_has_the_reason_of_the_selection(quantization_story):
    reasons = answer.why_not(quantization_story, quantization_story.choice(FLOORS.get("default")))
    assert reasons["int8"] == "chosen"
    assert "Output throughput" in reasons["q4_1"]
    assert "Task code" in reasons["w8a8-static"]
    html = answer.schemes_table(quantization_story).to_html()
    assert all(name in html for name in reasons)
    assert "the limit is 0.02 nats" in html


@pytest.mark.parametrize(
    ("candidate", "column", "value", "claim"),
    [
        ("int8", "status", "failed", "reached its end"),
        ("int8", "quality.kl_mean", 0.03, "keeps the quality floor"),
        ("int8", "comparison.output_tokens_per_s.verdict", "worse", "not worse"),
    ],
)
def test_an_answer_that_does_not_hold_ends_the_notebook(
    quantization_story, candidate, column, value, claim
):
    with pytest.raises(AssertionError, match=claim):
        answer.check(change(quantization_story, candidate, column, value))


def test_widths_that_lose_less_with_fewer_bits_end_the_notebook(quantization_story):
    table = quantization_story.data.table
    table.loc[table["slug"] == "float_trained.int3-rtn-g64", "quality.kl_mean"] = 0.02
    with pytest.raises(AssertionError, match="fewer bits"):
        quality.check(quantization_story)


def test_what_was_not_measured_is_said(lone_schemes):
    remark = quality.bits_axes(lone_schemes, "float_trained")
    assert isinstance(remark, Remark)
    assert "`float_trained` is not part of this run" in remark._repr_markdown_()
    assert isinstance(quality.quality_table(lone_schemes, "float_trained"), Remark)
    assert quality.order_sentence(lone_schemes, "float_trained") == ""
    assert "Too few widths" in quality.cliff_sentence(lone_schemes)


def test_the_floor_is_that_of_the_choice(quantization_story, tmp_path: Path, monkeypatch):
    """Pins: the notebook judged by its own floor, the pipeline by the configured one."""
    data = quantization_story.data
    monkeypatch.setattr(story, "stage_results", lambda *args: data)
    chosen = tmp_path / "chosen" / "quantization.yaml"
    write_yaml({"slices": {}, "quality_floor": "default"}, chosen)
    assert quantization.quantization_story(tmp_path).floor == FLOORS.get("default")
    lossy = FLOORS.get("lossy")
    write_yaml({"slices": {}, "quality_floor": lossy.to_dict()}, chosen)
    assert quantization.quantization_story(tmp_path).floor == lossy
    data = replace(data, is_miniature=True)
    assert quantization.quantization_story(tmp_path).floor == FLOORS.get("default")


def test_the_miniature_asks_every_question():
    specs = {spec.name: spec for spec in miniature_specs("quantization")}
    assert list(specs) == ["schemes", "float_trained", "calibration"]
    assert all(spec.model == "tiny-dense" for spec in specs.values())
    assert specs["schemes"].measure_steps and specs["schemes"].decides
    assert not specs["calibration"].decides
    for spec in specs.values():
        assert spec.quality_tier == "screen"
        for slug in spec.candidates:
            spec.engine_config(slug)  # every combination is a valid configuration
    assert {spec.model for spec in miniature_specs("quantization", "x")} == {"x"}
