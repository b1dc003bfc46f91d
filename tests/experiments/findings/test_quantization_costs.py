"""Speed, memory, layers and calibration of the quantization notebook, from given numbers."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from infopt.experiments.findings import quantization_calibration as calibration
from infopt.experiments.findings import quantization_layers as layers
from infopt.experiments.findings import quantization_memory as memory
from infopt.experiments.findings import quantization_speed as speed
from infopt.experiments.findings.missing import Remark
from infopt.experiments.findings.quantization import QuantizationStory


def title(axes):
    return axes.get_figure().get_suptitle().replace("\n", " ")


def test_a_gain_is_a_ratio_of_steps_with_the_ends_of_both_intervals(quantization_story):
    """A step of int8 moves a quarter of the bytes and takes 1.6 times what the machine allows."""
    gain = speed.gain_of(quantization_story, "int8")
    first = gain.table.iloc[0]
    assert first["measured"] == pytest.approx(4.001e6 / 1.001e6 / 1.6)
    assert first["low"] == pytest.approx(first["measured"] * 0.9 / 1.1)
    assert first["high"] == pytest.approx(first["measured"] * 1.1 / 0.9)
    assert first["predicted"] == pytest.approx(4.001e6 / 1.001e6)
    assert first["regime"] == "weight-bandwidth"
    assert list(gain.measured["num_tokens"]) == [1, 2, 4]
    assert list(gain.table["num_tokens"]) == list(speed.SIZES)


def test_predictions_go_on_beyond_what_was_measured(quantization_story):
    """At 32 sequences both steps are bound by the same 64 MFLOP: no gain is left."""
    gain = speed.gain_of(quantization_story, "int8")
    last = gain.table.iloc[-1]
    assert np.isnan(last["measured"])
    assert last["predicted"] == pytest.approx(1)
    # 8 sequences: 4.01 ms of bytes over 1.6 ms of arithmetic, 2.5x; 16 sequences: 1.26x.
    assert gain.fades_at("predicted") == 16
    assert gain.fades_at("measured") is None


def test_a_gain_ends_where_the_interval_reaches_one(quantization_story):
    assert speed.gain_of(quantization_story, "int8").ends_at is None
    slow = speed.gain_of(quantization_story, "w8a8-dynamic")
    assert slow.ends_at == 1
    assert slow.fades_at("measured") is None, "there was no gain to lose"
    assert slow.measured["regime"].tolist() == ["overhead"] * 3


def test_steps_of_other_slices_are_not_mixed_in(quantization_story):
    """Pins: samples were picked by the candidate's name alone, which several slices share."""
    curve = quantization_story.curve("schemes", "int8", "decode_")
    assert curve["measured_s"].iloc[0] == pytest.approx(1.6 * 1.001e-3)


def test_the_least_lossy_of_each_product_is_drawn(quantization_story):
    names = ["q4_1", "int8", "w8a8-dynamic", "w8a8-static", "int4-gptq-g64", "mixed-5"]
    shown = speed.shown_schemes(quantization_story, names)
    assert shown == ["q4_1", "int8", "w8a8-dynamic", "int4-gptq-g64"]
    assert "mixed-5" in speed.shown_schemes(
        QuantizationStory(
            replace(quantization_story.data, chosen={"schemes": {"chosen": "mixed-5"}}),
            quantization_story.floor,
        ),
        names,
    )


def test_the_sections_on_speed_quote_the_numbers(quantization_story):
    text = speed.fade_sentences(quantization_story)
    assert "- `int8`: 2.50x at 1 (predicted 4.00x), 2.49x at 4 (predicted 3.99x)" in text
    assert "Up to 4, the largest that was measured, it did not halve" in text
    table = speed.gain_table(quantization_story)
    assert table.loc["w8a8-dynamic", "1 in the step: limited by"] == "overhead"
    assert speed.gain_axes(quantization_story).has_data()
    assert title(speed.lone_axes(quantization_story)) == (
        "Alone, int4-gptq-g64 answers first: 100 ms, none (float32) takes 300 ms"
    )
    assert speed.lone_table(quantization_story).loc["none", "first token (ms)"] == 100
    assert title(speed.load_axes(quantization_story)) == (
        "Throughput against none (float32): 6 faster; most with int4-gptq-g64, 3.00x"
    )
    speed.check(quantization_story)


def test_memory_tells_what_a_step_reads_from_what_is_held(quantization_story):
    table = memory.memory_table(quantization_story)
    assert table.loc["int8", "weights in memory (MiB)"] == pytest.approx(1.5e6 / 2**20, abs=0.06)
    assert table.loc["int8", "read by a decode step (MiB)"] == pytest.approx(1e6 / 2**20, abs=0.06)
    assert table.loc["int8", "of the reference (%)"] == pytest.approx(100 / 3, abs=0.06)
    text = memory.memory_sentence(quantization_story)
    assert text.startswith("`int4-gptq-g64` is the smallest: 1 MiB of weights, 24% of `none (float")
    assert "the other 47% is mostly the embedding table" in text
    assert title(memory.memory_axes(quantization_story)).startswith("int4-gptq-g64 is the smallest")
    memory.check(quantization_story)


def test_a_packed_format_that_takes_more_memory_ends_the_notebook(quantization_story):
    table = quantization_story.data.table
    table.loc[table["slug"] == "schemes.int8", "memory.weights_bytes"] = 1e9
    with pytest.raises(AssertionError, match="int8 is packed"):
        memory.check(quantization_story)


def test_sensitivity_is_read_by_part(quantization_story):
    parts = layers.sensitivities(quantization_story)
    assert parts["part"].tolist() == ["attention", "mlp", "head"]
    assert np.isnan(parts["layer"].iloc[2])
    text = layers.sensitivity_sentence(quantization_story)
    assert text.startswith("Half of the KL comes from 25% of the weights (1 of 3 parts).")
    assert "attention 25%, mlp 25%, head 50%" in text
    table = layers.sensitivity_table(quantization_story)
    assert table.iloc[0]["part"] == "head"
    assert table.iloc[0]["share of all (%)"] == 50
    assert layers.sensitivity_axes(quantization_story).has_data()


def test_a_mixed_scheme_is_compared_with_the_best_of_its_size(quantization_story):
    text = layers.mixed_sentence(quantization_story)
    assert text == (
        "- `mixed-5` (4 mixed-5) uses 4.5 bits and loses 0.09 nats, **more** than "
        "`int4-gptq-g64` with 4.5 bits (0.08)."
    )


def test_errors_are_those_of_the_blocks(quantization_story):
    table = layers.error_table(quantization_story)
    assert len(table) == 14, "the head belongs to no block"
    assert table["block"].tolist() == [0] * 7 + [1] * 7
    text = layers.error_sentence(quantization_story)
    assert "`int4-gptq-g64`: 6.4 % on average, 20 % in `mlp.down_proj` of layer 1" in text
    assert "`mlp.down_proj` is the hardest (15 %)" in text
    assert layers.error_axes(quantization_story).has_data()


def test_calibration_says_how_much_and_which_text(quantization_story):
    text = calibration.size_sentence(quantization_story)
    assert "With 256 tokens the KL is 0.04 nats, with 4096 it is 0.01; plain rounding loses" in text
    assert "1024 tokens come within a tenth of the best" in text
    text = calibration.domain_sentence(quantization_story)
    assert "on docs calibration on docs gives 1.010x [1.005, 1.020] and on other text 1.02x" in text
    assert "(undecided)" in text
    assert "Random tokens, which resemble nothing: 1.04x" in text
    assert calibration.size_axes(quantization_story).has_data()
    assert calibration.domain_axes(quantization_story).has_data()
    rows = [t.get_text() for t in calibration.static_axes(quantization_story).get_yticklabels()]
    assert rows == ["dynamic", "static-docs", "static-code"]
    assert calibration.table(quantization_story).loc["gptq-docs", "tokens"] == "8192"
    calibration.check(quantization_story)


def test_static_scales_are_compared_where_both_ran(quantization_story):
    text = calibration.static_sentence(quantization_story)
    assert text == (
        "- `tiny`: scales at run time cost 0.05 nats, calibrated ones 0.5, **10x** as much, for "
        "the same weights in 8 bits. Throughput over the reference: 2.50x [2.38, 2.62] and 2.60x "
        "[2.47, 2.73]."
    )
    text = calibration.cost_sentence(quantization_story)
    assert "`int4-gptq-g64` 0 s for 2048 tokens, `w8a8-static` 5 s for 1024 tokens" in text


def test_text_of_what_needs_none_ends_the_notebook(quantization_story):
    table = quantization_story.data.table
    table.loc[table["slug"] == "calibration.rtn", "extra.calibration_tokens"] = 5
    with pytest.raises(AssertionError, match="needs no text"):
        calibration.check(quantization_story)


def test_a_run_without_steps_or_calibration_says_so(lone_schemes):
    for found in (
        speed.gain_axes(lone_schemes),
        speed.gain_table(lone_schemes),
        layers.sensitivity_axes(lone_schemes),
        layers.sensitivity_table(lone_schemes),
        layers.error_axes(lone_schemes),
        calibration.size_axes(lone_schemes),
        calibration.domain_axes(lone_schemes),
        calibration.static_axes(lone_schemes),
        calibration.table(lone_schemes),
    ):
        assert isinstance(found, Remark)
    assert speed.fade_sentences(lone_schemes) == ""
    assert layers.error_sentence(lone_schemes) == layers.mixed_sentence(lone_schemes) == ""
    assert calibration.cost_sentence(lone_schemes) == "No scheme of this run was calibrated."
    assert "embedding" not in memory.memory_sentence(lone_schemes)
    for module in (speed, memory, calibration):
        module.check(lone_schemes)
