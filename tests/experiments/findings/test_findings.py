"""What the notebooks say follows from the numbers they are given."""

import pandas as pd
import pytest

from infopt.bench.roofline_ops import OPS
from infopt.errors import ConfigError, ResultError
from infopt.experiments.findings import batching
from infopt.experiments.findings.data import StageResults, choices_table
from infopt.experiments.findings.miniature import miniature_specs
from infopt.experiments.findings.roofline import RooflineStory
from infopt.experiments.findings.step_ops import OpStory
from infopt.experiments.findings.step_times import step_time_axes, utilisation
from infopt.experiments.findings.tables import (
    compare_table,
    forest_axes,
    forest_title,
    full_text,
    ratio_sentence,
)


def ratio(median, verdict, reference, metric="output_tokens_per_s"):
    values = {"median": median, "low": median * 0.9, "high": median * 1.1, "num_pairs": 6}
    values |= {"verdict": verdict, "reference": reference}
    return {f"comparison.{metric}.{key}": value for key, value in values.items()}


def row(name, candidate, position, **values):
    return {
        "run": f"batching/{name}.{candidate}",
        "stage": "batching",
        "slug": f"{name}.{candidate}",
        "status": "ok",
        "extra.slice": name,
        "extra.candidate": candidate,
        "extra.position": position,
        "throughput.output_tokens_per_s": 100.0,
        "latency.tpot_s.p50": 0.01,
        "latency.itl_s.p90": 0.02,
        "latency.itl_s.p99": None,
        "latency.ttft_s.p50": 0.1,
    } | {key.replace("__", "."): value for key, value in values.items()}


@pytest.fixture
def results():
    """Batching results with round numbers."""
    static, continuous = (
        row("scheduling", name, i, extra__mean_seqs_per_step=seqs)
        for i, (name, seqs) in enumerate((("static", 2.0), ("continuous", 7.5)))
    )
    rows = [
        static,
        continuous | ratio(1.8, "better", "scheduling.static"),
        row("max_num_seqs", "seqs-1", 0, config__max_num_seqs=1),
        row("max_num_seqs", "seqs-8", 1, config__max_num_seqs=8)
        | {"throughput.output_tokens_per_s": 500.0, "latency.tpot_s.p50": 0.016},
        row("token_budget", "tokens-64", 0, config__max_num_batched_tokens=64),
        row("token_budget", "tokens-512", 1, config__max_num_batched_tokens=512)
        | {"latency.itl_s.p90": 0.09, "latency.ttft_s.p50": 0.05},
        row("page_size", "page-16", 0, config__block_size=16, memory__kv_waste_share=0.024),
        row("page_size", "page-64", 1, config__block_size=64, memory__kv_waste_share=0.1),
        row("prefix_cache", "cache-off", 0, extra__prefix_hit_share=0.0),
        row("prefix_cache", "cache-on", 1, extra__prefix_hit_share=0.8)
        | ratio(0.2, "better", "prefix_cache.cache-off", "ttft_s"),
    ]
    chosen = {"scheduling": {"chosen": "continuous", "reference": "static"}}
    chosen["scheduling"] |= {"status": "chosen", "reason": "because"}
    return StageResults(pd.DataFrame(rows), pd.DataFrame(), chosen, "note", is_miniature=False)


def test_sentences_quote_the_numbers(results):
    text = batching.scheduling(results)
    assert "**1.80x** the output throughput of static [1.62, 1.98] (better)" in text
    assert "7.5 sequences shared a step on average instead of 2.0" in text
    text = batching.batch_size(results)
    assert "From 1 to 8 sequences" in text
    assert "**5.0x**" in text
    assert "1.6x" in text
    text = batching.token_budget(results)
    assert "With 64 tokens per step one gap in ten between tokens was longer than 20 ms" in text
    assert "512 tokens one gap in ten between tokens was longer than 90 ms" in text
    assert "2.4%" in batching.page_size(results)
    assert "80% of all prompt tokens" in batching.prefix_cache(results)
    assert "**0.20x** the TTFT of cache-off" in batching.prefix_cache(results)
    assert batching.answer(results).endswith("- **scheduling**: `continuous`")
    batching.check(results)


@pytest.mark.parametrize(
    ("candidate", "column", "value"),
    [
        ("page-64", "memory.kv_waste_share", 0.001),
        ("cache-on", "extra.prefix_hit_share", 0.0),
        ("seqs-1", "status", "failed"),
        ("continuous", "comparison.output_tokens_per_s.verdict", "worse"),
    ],
)
def test_a_claim_that_does_not_hold_ends_the_notebook(results, candidate, column, value):
    table = results.table
    table.loc[table["extra.candidate"] == candidate, column] = value
    with pytest.raises(AssertionError):
        batching.check(results)


def test_rows_come_in_the_order_of_the_configuration(results):
    shuffled = results.table.sample(frac=1, random_state=3)
    again = StageResults(shuffled, results.samples, {}, "", is_miniature=True)
    assert list(again.rows("scheduling")["extra.candidate"]) == ["static", "continuous"]
    with pytest.raises(ResultError, match="no slice 'page'"):
        again.rows("page")
    with pytest.raises(ResultError, match="no candidate 'seqs-2'"):
        again.row("max_num_seqs", "seqs-2")


def test_what_was_not_compared_is_said_so(results):
    assert ratio_sentence(results.row("scheduling", "static"), "ttft_s") == "not compared"


def test_a_title_names_what_is_decided_and_a_table_the_reference(results):
    rows = results.rows("scheduling")
    assert forest_title(rows, "output_tokens_per_s") == (
        "Output throughput against static: continuous 1.80x"
    )
    assert forest_title(results.rows("prefix_cache"), "ttft_s") == (
        "TTFT against cache-off: cache-on 0.20x"
    )
    axes = forest_axes(rows, "output_tokens_per_s")
    assert "static" in [t.get_text() for t in axes.texts]
    table = compare_table(rows, ["throughput.output_tokens_per_s"], "output_tokens_per_s")
    assert list(table["output throughput, ratio"]) == ["reference", "1.80x [1.62, 1.98] better"]


def test_nothing_decided_is_said(results):
    results.table["comparison.ttft_s.verdict"] = "undecided"
    title = forest_title(results.rows("prefix_cache"), "ttft_s")
    assert title == "No TTFT differs from that of cache-off beyond doubt"


def test_long_texts_are_shown_in_full():
    long = "word " * 40
    assert long.strip() in full_text(pd.DataFrame({"why": [long.strip()]})).to_html()


def test_choices_are_a_table_with_their_reason(results):
    table = choices_table(results.chosen)
    assert list(table.index) == ["scheduling"]
    assert table.loc["scheduling", "why"] == "because"


def op_samples(slug):
    """A decode of 4 in which gate_up takes 7 of 17 ms, and a prefill mostly between ops."""
    samples = []
    for i, (tokens, cached) in enumerate(((4, 127), (128, 0))):
        values = {"num_tokens": tokens, "num_cached": cached, "whole_s": 0.015 + i}
        values["between.measured_s"] = 0.001 + i
        for op in OPS:
            values[f"{op}.measured_s"] = 0.007 if op == "gate_up" else 0.001
            values[f"{op}.predicted_s"] = 0.0008
            values[f"{op}.bytes"] = 8e7
            values[f"{op}.flops"] = 8e8 + 1e9 * i
        samples += [
            {"slug": slug, "name": f"ops.{key}", "index": i, "value": value}
            for key, value in values.items()
        ]
    return samples


@pytest.fixture
def story():
    """A machine of 100 GB/s and 1 TFLOP/s; a step of 8 sequences takes twice that of one."""
    rows, samples = [], []
    for position, (name, size) in enumerate((("float32", 4), ("bfloat16", 2))):
        own = row("precision", name, position)
        own |= {
            "slug": f"precision.{name}",
            "roofline.bandwidth_bytes_per_s": 1e11,
            "roofline.flops_per_s": 1e12,
            "memory.weights_bytes": size * 10**8,
            "throughput.output_tokens_per_s": 100.0 * (position + 1),
        }
        if position:
            own |= ratio(2.0, "better", "precision.float32")
        rows.append(own)
        for prefix, sizes in (("decode_", (1, 8)), ("prefill_", (16, 512))):
            for i, tokens in enumerate(sizes):
                values = {
                    "num_tokens": tokens,
                    "measured_s": 0.01 * (1 + tokens / 8),
                    "low_s": 0.009,
                    "high_s": 0.03,
                    "predicted_s": 0.004,
                    "bytes": size * 10**8 + tokens * 1e4,
                    "flops": 2e8 * tokens,
                    "forward_s": 0.008,
                }
                samples += [
                    {"slug": own["slug"], "name": prefix + key, "index": i, "value": value}
                    for key, value in values.items()
                ]
        samples += op_samples(own["slug"])
    data = StageResults(pd.DataFrame(rows), pd.DataFrame(samples), {}, "", is_miniature=False)
    return RooflineStory(data)


def test_the_roofline_is_read_off_the_numbers(story):
    assert story.best == "bfloat16"
    assert story.ridge("bfloat16") == 10
    assert story.machine_table().loc["float32", "least time of a decode step (ms)"] == 4
    assert len(story.points()) == 4
    assert story.points_title() == (
        "bfloat16: 2 of 4 steps lie left of the ridge, where memory limits"
    )
    batch, growth = story.growth()
    assert batch == 8
    assert growth == pytest.approx(0.02 / 0.01125)
    text = story.answer()
    assert "so **memory** is its limit" in text
    assert "`bfloat16` gave **2.00x**" in text
    story.check()


def test_a_batch_that_costs_as_much_as_its_parts_is_no_finding(story):
    samples = story.data.samples
    mask = (samples["name"] == "decode_measured_s") & (samples["index"] == 1)
    samples.loc[mask, "value"] = 1.0
    with pytest.raises(AssertionError, match="batching pays"):
        story.check()


def test_utilisation_is_work_over_time_and_limit(story):
    table = utilisation(story.decode("bfloat16"), 1e11, 1e12)
    first = table.iloc[0]
    assert first["MBU (%)"] == pytest.approx(100 * (2e8 + 1e4) / (0.01125 * 1e11), abs=0.05)
    assert first["MFU (%)"] == pytest.approx(100 * 2e8 / (0.01125 * 1e12), abs=0.05)
    assert first["tokens in the step"] == 1


def test_the_step_plot_has_units_bounds_and_the_finding(story):
    curves = {name: story.decode(name) for name in story.rows}
    axes = step_time_axes(curves, "Sequences", story.growth_title())
    assert axes.get_xlabel() == "Sequences"
    assert "(ms)" in axes.get_ylabel()
    labels = axes.get_legend_handles_labels()[1]
    assert sorted(labels) == sorted(
        f"{name}, {what}" for name in curves for what in ("measured", "least possible")
    )


def test_the_largest_op_and_its_distance_are_named(story):
    ops = story.ops
    assert ops.steps == ["decode of 4", "prefill of 128"]
    assert ops.sentence("decode of 4") == (
        "in a decode of 4 the largest term is **gate_up** with 41% of the step (7.00 ms), 8.8x its "
        "limit (memory). The most time beyond a limit goes to gate_up: 6.20 ms (36% of the "
        "step)."
    )
    assert "**between**" in ops.sentence("prefill of 128")
    assert "which no limit explains" in ops.sentence("prefill of 128")
    assert ops.shares_title() == "bfloat16: gate_up takes 41% of the decode of 4"
    assert ops.answer().endswith(
        "took: decode of 4 17.00 ms (15.00), prefill of 128 1017.00 ms (1015.00)."
    )
    assert ops.answer().startswith("- In a decode of 4")
    assert "Op by op, in a decode of 4 the largest term is **gate_up**" in story.answer()
    ops.check()


def test_ops_are_shown_with_work_share_and_limit(story):
    details = story.ops.details().data
    gate_up = details.loc[("decode of 4", "gate_up")]
    assert gate_up["ms"] == pytest.approx(7)
    assert gate_up["share (%)"] == pytest.approx(100 * 7 / 17)
    assert (gate_up["MB"], gate_up["MFLOP"]) == (80, 800)
    assert gate_up["x limit"] == pytest.approx(8.75)
    limits = [details.loc[(step, "gate_up"), "limited by"] for step in story.ops.steps]
    assert limits == ["memory", "arithmetic"]
    assert "nan" not in story.ops.overview().to_html()
    shares = story.ops.table.groupby("step")["share"].sum()
    assert shares.tolist() == pytest.approx([1, 1])


def test_a_limit_is_memory_left_of_the_ridge(story):
    """8e8 FLOP take 0.8 ms at 1 TFLOP/s; 8e7 bytes take 0.8 ms at 100 GB/s, more at 90."""
    ops = OpStory("x", story.ops.curve, bandwidth=9e10, flops=1e12)
    limits = ops.details().data["limited by"]
    assert limits[("decode of 4", "qkv")] == "memory"
    assert limits[("prefill of 128", "qkv")] == "arithmetic"
    assert limits[("prefill of 128", "between")] == ""


def test_a_run_without_ops_says_so(story):
    samples = story.data.samples
    samples["name"] = samples["name"].str.replace("ops.", "other.", regex=False)
    with pytest.raises(ResultError, match="recorded no single ops"):
        story.answer()


def test_miniatures_ask_the_questions_of_their_stage():
    names = [spec.name for spec in miniature_specs("batching", "x")]
    assert names == ["scheduling", "max_num_seqs", "token_budget", "page_size", "prefix_cache"]
    for spec in [*miniature_specs("batching"), *miniature_specs("baseline")]:
        for slug in spec.candidates:
            spec.engine_config(slug)  # every combination is a valid configuration
    with pytest.raises(ConfigError, match="no miniature"):
        miniature_specs("select")
