"""What the notebook on mixtures of experts says follows from the numbers it is given."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pandas as pd
import pytest

from infopt.experiments.findings import moe as findings
from infopt.experiments.findings import moe_answer as answer
from infopt.experiments.findings import moe_quantization as quantization
from infopt.experiments.findings.data import StageResults
from infopt.experiments.findings.miniature import miniature_specs
from infopt.experiments.findings.missing import Remark
from infopt.experiments.findings.moe import MoeStory
from infopt.select import get_floor

STAGE = "moe"

Row = Callable[..., dict[str, Any]]

# Times of decode steps over those of the dense model, at 1, 4 and 16 sequences.
TIMES = {
    ("pair", "moe"): (1.5, 1.4, 1.2),
    ("speed", "moe-8"): (1.05, 2.0, 3.2),
    ("speed", "dense-large"): (3.3, 3.3, 3.3),
}
BATCHES = (1, 4, 16)
FORMULA = {"moe": (1.0, 1.3, 1.5), "moe-8": (1.0, 2.1, 3.2), "dense-large": (3.4, 3.4, 3.4)}
LOADS = {"docs": (50, 30, 10, 10), "code": (25, 25, 25, 25)}


def compared(name: str, median: float, verdict: str) -> dict[str, Any]:
    base = f"comparison.{name}"
    ends = {"low": median * 0.97, "high": median * 1.03}
    return {f"{base}.{k}": v for k, v in {"median": median, "verdict": verdict, **ends}.items()}


def perplexity(kind: str, ratio: float, low: float, high: float) -> dict[str, Any]:
    base = f"quality.perplexity_ratio.{kind}"
    return {f"{base}.ratio": ratio, f"{base}.low": low, f"{base}.high": high}


def grouped(median: float) -> dict[str, Any]:
    found = {"rows": 32, "median": median, "low": median - 0.1, "high": median + 0.1}
    return {f"extra.grouped_{name}": value for name, value in found.items()}


@pytest.fixture
def table(row: Row) -> pd.DataFrame:
    locality = {
        f"extra.experts_{kind}_{name}": value
        for kind in LOADS
        for name, value in {"same_first": 0.31, "chance_by_load": 0.28, "chance": 0.25}.items()
    }
    sizes = {"extra.num_parameters": 2e6, "extra.read_bytes_per_token_1": 8e6}
    rows = [
        row("pair", "dense", 0, **sizes, **{"energy.derived": True}),
        row(
            "pair",
            "moe",
            1,
            **{"extra.num_parameters": 3e6, "energy.derived": True, "energy.j_per_token": 1e-3},
            **perplexity("docs", 0.95, 0.92, 0.98),
            **perplexity("code", 0.99, 0.97, 1.01),
            **compared("output_tokens_per_s", 0.8, "worse"),
            **compared("ttft_s", 1.1, "worse"),
        ),
        row("speed", "dense", 0, **{"extra.num_experts": 0}),
        row("speed", "moe-8", 1, **{"extra.num_experts": 8}, **grouped(1.4)),
        row("speed", "dense-large", 2, **{"extra.num_experts": 0}),
        row("experts", "uncounted", 0),
        row(
            "experts",
            "counted",
            1,
            **{"extra.num_experts": 4},
            **locality,
            **compared("output_tokens_per_s", 0.99, "undecided"),
        ),
        quantized(row, "none", 0, 0.0, 1.0),
        quantized(row, "int8-experts-int4", 1, 0.015, 1.005),
        quantized(row, "int4", 2, 0.05, 1.04),
    ]
    return pd.DataFrame(rows)


def quantized(row: Row, name: str, position: int, kl: float, ratio: float) -> dict[str, Any]:
    return row(
        "expert_quantization",
        name,
        position,
        **{"quality.kl_mean": kl, "memory.weights_bytes": 4e6, "extra.quantization_scheme": name},
        **perplexity("docs", ratio, ratio - 0.01, ratio + 0.01),
    )


def samples() -> pd.DataFrame:
    lists: dict[tuple[str, str], list[float]] = {}
    for (slice_name, candidate), ratios in TIMES.items():
        columns = {
            "batch": BATCHES,
            "ratio": ratios,
            "low": [r * 0.98 for r in ratios],
            "high": [r * 1.02 for r in ratios],
            "num_pairs": [8] * 3,
            "predicted": FORMULA[candidate],
        }
        for name, values in columns.items():
            lists[f"{slice_name}.{candidate}", f"batch_curve.{name}"] = [float(v) for v in values]
    for kind, loads in LOADS.items():
        columns = {
            f"load.{kind}.layer": [1] * 4,
            f"load.{kind}.expert": range(4),
            f"load.{kind}.tokens": loads,
            f"balance.{kind}.layer": [1],
            f"balance.{kind}.jain": [0.694 if kind == "docs" else 1.0],
            f"balance.{kind}.imbalance": [max(loads) / 25],
            f"balance.{kind}.entropy": [0.9],
            f"distinct.{kind}.rows": [1, 4],
            f"distinct.{kind}.mean": [2.0, 3.0 if kind == "docs" else 3.75],
            f"distinct.{kind}.most": [2, 4],
            f"distinct.{kind}.formula": [2.0, 3.75],
            f"distinct.{kind}.bound": [2, 4],
        }
        for name, values in columns.items():
            lists["experts.counted", name] = [float(v) for v in values]
    return pd.DataFrame(
        [
            {
                "run": f"moe/{slug}",
                "stage": "moe",
                "slug": slug,
                "name": name,
                "index": i,
                "value": v,
            }
            for (slug, name), values in lists.items()
            for i, v in enumerate(values)
        ]
    )


@pytest.fixture
def story(table: pd.DataFrame) -> MoeStory:
    data = StageResults(table, samples(), {}, "note", is_miniature=False)
    return MoeStory(data, get_floor("default"))


def without(story: MoeStory, *slices: str) -> MoeStory:
    kept = story.data.table.loc[~story.data.table["extra.slice"].isin(slices)]
    return replace(story, data=replace(story.data, table=kept))


def title(ax: Any) -> str:
    return ax.get_figure().get_suptitle().replace("\n", " ")


def test_measures_are_judged_by_their_intervals_and_modelled_energy_is_not_compared(story):
    found = findings.pair_table(story)
    assert list(found["measure"].str.partition(" (")[0]) == [
        *("Perplexity on docs", "Perplexity on code", "Throughput", "Time to first token")
    ]
    assert list(found["verdict"]) == ["better", "undecided", "worse", "worse"]
    assert "0.950x, 0.990x" in title(answer.pair_axes(story))
    assert "1 of 2 beyond doubt" in title(answer.pair_axes(story))
    costs = findings.pair_costs(story)
    assert costs.loc["weights stored (M)", "moe"] == "3.00"
    assert costs.loc["energy (mJ/token, modelled)", "moe"] == "1.000"
    assert costs.loc["energy (mJ/token, modelled)", "dense"] == "-"


def test_times_become_speeds_with_their_ends_turned_round(story):
    gains = findings.speed_gains(story.speed_curves)
    first = gains.loc[gains["candidate"] == "moe-8"].iloc[1]
    assert first["measured"] == pytest.approx(0.5)
    assert first["low"] == pytest.approx(1 / 2.04)
    assert first["high"] == pytest.approx(1 / 1.96)
    assert first["predicted"] == pytest.approx(1 / 2.1)


def test_the_advantage_over_a_model_of_equal_size_peaks_at_one(story):
    found = findings.advantages(story, "moe-8")
    assert list(found["measured"]) == pytest.approx([3.3 / 1.05, 1.65, 3.3 / 3.2])
    assert list(found["predicted"]) == pytest.approx([3.4, 3.4 / 2.1, 3.4 / 3.2])
    assert (found["low"] < found["measured"]).all()
    assert (found["measured"] < found["high"]).all()
    text = "moe-8: most 3.1x at 1, least 1.0x at 16 at once"
    assert answer.advantage_sentence(found) == title(answer.advantage_axes(story)) == text
    more = pd.concat([found, found.iloc[:1].assign(batch=64, measured=2.5)])
    assert answer.advantage_sentence(more).endswith(
        "least 1.0x at 16, in the end 2.5x at 64 at once"
    )


def test_sentences_hold_the_numbers(story):
    assert "1.05x [1.03, 1.07] the dense model's time, within the 1.15x" in answer.bound_sentence(
        story
    )
    assert "`moe-8` at a batch of 1, 1.05x measured, 1.00x from" in answer.formula_sentence(story)
    assert "3.20x at 16 sequences (formula 3.20x)" in title(answer.speed_axes(story))
    assert "1.50x at 1, 1.20x at 16" in title(answer.tiny_axes(story))
    assert "1.40x the speed of a loop over the experts" in findings.grouped_sentences(story)
    text = findings.balance_sentences(story)
    assert "Jain's index 0.694" in text
    assert "**31%** of cases; by chance 25.0%" in text
    assert "between -20.0% and +0.0%" in findings.distinct_sentence(story)
    assert "(0 of 4 sizes do)" in findings.distinct_sentence(story)
    assert "0.99x the output throughput" in findings.counting_sentence(story)


def test_a_slow_mixture_is_called_slow(story):
    samples = story.data.samples.copy()
    is_first = (
        (samples["slug"] == "speed.moe-8")
        & (samples["name"] == "batch_curve.ratio")
        & (samples["index"] == 0)
    )
    samples.loc[is_first, "value"] = 1.2
    slow = replace(story, data=replace(story.data, samples=samples))
    assert "above the 1.15x" in answer.bound_sentence(slow)


def test_loads_are_shares_with_intervals(story):
    found = findings.load_table(story)
    docs = found.loc[found["kind"] == "docs"]
    assert list(docs["share"]) == [0.5, 0.3, 0.1, 0.1]
    assert (docs["low"] < docs["share"]).all()
    assert "50% of a layer's tokens (on docs), the idlest 10%" in title(answer.load_axes(story))
    assert "4 sequences of docs: 3.00 of 4" in title(answer.distinct_axes(story))


def test_quantized_experts_are_judged_by_the_floor(story):
    shown = quantization.quantization_table(story)
    assert not isinstance(shown, Remark)
    assert list(shown.index) == ["none", "int8-experts-int4", "int4"]
    assert shown.loc["int4", "perplexity, docs"] == "1.040x [1.030, 1.050]"
    text = quantization.quantization_sentence(story)
    assert "`int8-experts-int4` loses least (KL 0.0150 nats)" in text
    assert "floor of 0.02: `int8-experts-int4`." in text


def test_the_answer_names_quality_traffic_and_memory(story):
    text = answer.answer(story)
    assert "0.950x [0.920, 0.980] on docs" in text
    assert "at equal work per token:** the trained mixture predicts" in text.splitlines()[0]
    assert "1.05x its time at 1 sequence, at worst 3.20x at 16" in text
    assert "equal size**, in speed: most 3.1x at 1, least 1.0x at 16 at once." in text
    assert "stores 1.50x the dense model's weights" in text
    answer.check(story)


def test_what_was_not_measured_is_said(story):
    few = without(story, "speed", "experts", "expert_quantization")
    for axes in (answer.speed_axes, answer.advantage_axes, answer.load_axes, answer.distinct_axes):
        assert isinstance(axes(few), Remark)
    assert isinstance(quantization.quantization_table(few), Remark)
    assert "not part of this run" in answer.bound_sentence(few)
    assert "not part of this run" in answer.formula_sentence(few)
    assert "not part of this run" in findings.grouped_sentences(few)
    assert "perplexity" in answer.answer(few)
    answer.check(few)
    assert isinstance(answer.pair_axes(without(story, "pair")), Remark)
    assert isinstance(answer.tiny_axes(without(story, "pair")), Remark)


def test_a_run_that_contradicts_the_notebook_fails_its_check(story):
    samples = story.data.samples.copy()
    samples.loc[samples["name"] == "distinct.docs.most", "value"] = 9
    wrong = replace(story, data=replace(story.data, samples=samples))
    with pytest.raises(AssertionError):
        answer.check(wrong)


def test_the_miniature_asks_the_same_questions():
    specs = miniature_specs("moe")
    assert {"pair", "speed", "experts", "expert_quantization"} <= {spec.name for spec in specs}
    assert not any(spec.decides for spec in specs)
