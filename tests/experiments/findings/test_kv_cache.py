"""What the KV-cache notebook says follows from the numbers it is given."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pandas as pd
import pytest

from infopt.experiments.findings import kv_answer as answer
from infopt.experiments.findings import kv_cache as memory
from infopt.experiments.findings import kv_quality as quality
from infopt.experiments.findings import kv_sharing as sharing
from infopt.experiments.findings import kv_time as time
from infopt.experiments.findings.data import StageResults
from infopt.experiments.findings.kv_cache import KVStory
from infopt.experiments.findings.miniature import miniature_specs
from infopt.experiments.findings.missing import Remark
from infopt.select import FLOORS

KIB = 1024


def row(slice_name: str, name: str, position: int, reference: str, **extra: Any) -> dict[str, Any]:
    values = {
        "run": f"kv_cache/{slice_name}.{name}",
        "stage": "kv_cache",
        "slug": f"{slice_name}.{name}",
        "status": "ok",
        "hardware_id": "one",
        "started": f"2026-01-01T00:00:{position:02d}Z",
        "config.model": "some/tiny",
        "config.block_size": 16,
        "config.enable_prefix_caching": name != "cache-off",
        "workload.reference": f"{slice_name}.{reference}",
        "workload.criterion": "throughput",
        "extra.slice": slice_name,
        "extra.candidate": name,
        "extra.position": position,
        "memory.kv_pool_bytes": 64 * 2**20,
    }
    return values | {key.replace("__", "."): value for key, value in extra.items()}


def compressed(
    name: str, position: int, kept: float, kl: float, found: int, lost: int, p: float | None
) -> dict[str, Any]:
    """Return a candidate that finds ``found`` of 40 numbers."""
    score = found / 40
    values: dict[str, Any] = {
        "extra.kv_cache_dtype": "int8" if "int8" in name else "auto",
        "extra.kv_eviction": "snapkv" if "snapkv" in name else "none",
        "extra.kv_rows_share": 0.5 if "snapkv" in name else 1.0,
        "extra.kv_bytes_kept_per_token": kept * 20 * KIB,
        "extra.kv_context": 640.0,
        "memory.freed_bytes": 2**20 if "snapkv" in name else None,
        "quality.protocol.tier": "long",
        "quality.protocol.tasks.passkey": "p",
        "quality.protocol.tasks.dialogue": "d",
        "quality.kl_mean": kl,
        "quality.fidelity_details.kl_low": kl * 0.8,
        "quality.fidelity_details.kl_high": kl * 1.2,
    }
    for kind in ("docs", "code"):
        base = f"quality.perplexity_ratio.{kind}"
        values |= {f"{base}.ratio": 1 + kl, f"{base}.low": 1.0, f"{base}.high": 1 + 2 * kl}
    for task, value, count in (("passkey", score, 40), ("dialogue", score, 8)):
        low, high = max(value - 0.1, 0.0), min(value + 0.05, 1.0)
        base = f"quality.tasks.{task}"
        values |= {f"{base}.score": value, f"{base}.low": low, f"{base}.high": high}
        values[f"{base}.n"] = count
    if p is not None:
        values |= {
            "extra.passkey_num_lost": lost,
            "extra.passkey_num_gained": 0,
            "extra.passkey_p_value": p,
            "extra.dialogue_same_answers": score,
        }
        for metric in ("output_tokens_per_s", "ttft_s"):
            base = f"comparison.{metric}"
            values |= {f"{base}.median": 0.9, f"{base}.low": 0.8, f"{base}.high": 1.05}
            values |= {f"{base}.verdict": "undecided", f"{base}.num_pairs": 6}
            values[f"{base}.reference"] = "compression.auto"
    values["throughput.output_tokens_per_s"] = 100.0
    return row("compression", name, position, "auto") | values


def counted(name: str, position: int, num_seqs: int, predicted: int) -> dict[str, Any]:
    return row(
        "capacity",
        name,
        position,
        "auto",
        extra__capacity_num_seqs=num_seqs,
        extra__capacity_predicted_seqs=predicted,
        extra__capacity_context=1536,
        extra__capacity_bytes_per_token=20.0 * KIB / num_seqs,
        extra__capacity_tokens_per_s=50.0 if name == "auto" else None,
        extra__capacity_low=45.0,
        extra__capacity_high=55.0,
    )


def shared(name: str, position: int, hits: float, pool: int) -> dict[str, Any]:
    values = row(
        "prefix_turns",
        name,
        position,
        "cache-off",
        extra__sharing_hit_share=hits,
        extra__sharing_best_hit_share=0.5,
        extra__sharing_saved_flops_share=hits * 0.9,
        extra__sharing_service_ttft_s=0.1 * (1 - hits),
        extra__sharing_pool_tokens=pool,
    )
    if name != "cache-off":
        for end, ratio in (("median", 0.6), ("low", 0.5), ("high", 0.7)):
            values[f"comparison.ttft_s.{end}"] = ratio
        values["comparison.ttft_s.verdict"] = "better"
    return values


def lists(slug: str, **columns: list[float]) -> list[dict[str, Any]]:
    return [
        {"slug": slug, "name": name.replace("__", "."), "index": i, "value": value}
        for name, values in columns.items()
        for i, value in enumerate(values)
    ]


def curve(name: str, times_ms: list[float], kv: float) -> list[dict[str, Any]]:
    """Return a decode step of 8 over contexts of 16, 500 and 1000; the weights are 8 kB."""
    contexts = [16.0, 500.0, 1000.0]
    return lists(
        f"context.{name}",
        context__num_cached=contexts,
        context__measured_s=[t / 1e3 for t in times_ms],
        context__low_s=[t / 1e3 * 0.98 for t in times_ms],
        context__high_s=[t / 1e3 * 1.02 for t in times_ms],
        context__kv_bytes=[kv * c * 8 for c in contexts],
        context__weight_bytes=[8000.0] * 3,
        context__num_seqs=[8.0] * 3,
    )


@pytest.fixture
def story() -> KVStory:
    rows = [
        compressed("auto", 0, 1.0, 0.001, 40, 0, None),
        compressed("kv-int8", 1, 0.6, 0.002, 40, 0, 1.0),
        compressed("snapkv-50", 2, 0.5, 0.015, 38, 2, 0.5),
        compressed("snapkv-25", 3, 0.25, 0.2, 20, 20, 1e-6),
        counted("auto", 0, 4, 4),
        counted("kv-int8-snapkv-25", 1, 23, 24),
        row("context", "auto", 0, "auto"),
        row("context", "kv-int8", 1, "auto"),
        shared("cache-off", 0, 0.0, 4000),
        shared("cache-on", 1, 0.5, 4000),
        shared("cache-small", 2, 0.2, 400),
    ]
    samples = curve("auto", [1.0, 1.5, 2.5], 2.0) + curve("kv-int8", [1.0, 1.2, 1.5], 1.0)
    for name in ("auto", "kv-int8", "snapkv-50", "snapkv-25"):
        samples += lists(
            f"compression.{name}",
            passkey__correct=[1.0, 1.0, 0.0, 1.0],
            passkey__length=[256.0, 1024.0, 256.0, 1024.0],
            passkey__depth=[0.1, 0.5, 0.5, 0.1],
        )
    for name, cached in (("cache-on", [0, 64, 64]), ("cache-small", [0, 32, 0])):
        samples += lists(
            f"prefix_turns.{name}",
            sharing__prompt_tokens=[64.0, 96.0, 96.0],
            sharing__cached_tokens=[float(c) for c in cached],
            sharing__shareable_tokens=[0.0, 64.0, 64.0],
            sharing__service_ttft_s=[0.1, 0.05, 0.05],
            sharing__kept_pages=[4.0, 6.0, 6.0] if name == "cache-on" else [0.0, 2.0, 6.0],
        )
    chosen = {"compression": {"chosen": "auto", "reference": "auto", "status": "undecided"}}
    data = StageResults(pd.DataFrame(rows), pd.DataFrame(samples), chosen, "note", False)
    return KVStory(data, FLOORS.get("default"))


def title(axes: Any) -> str:
    assert not isinstance(axes, Remark)
    return axes.get_figure().get_suptitle().replace("\n", " ")


def test_bytes_are_compared_with_the_uncompressed(story):
    assert title(memory.kept_axes(story)).startswith("snapkv-25 keeps the fewest bytes: 25%")
    table = memory.kept_table(story)
    assert list(table["of the uncompressed (%)"]) == [100, 60, 50, 25]
    assert table.loc["snapkv-50", "returned to the pool (MiB)"] == "1.0"
    assert table.loc["auto", "returned to the pool (MiB)"] == ""
    assert "640 tokens" in memory.kept_sentence(story)


def test_counts_stand_beside_predictions(story):
    text = memory.capacity_sentence(story)
    assert "**4** prompts of 1536 tokens" in text and "**23**" in text and "(5.8x)" in text
    assert "off by 1 sequence at most" in text
    assert "5.8x" in title(memory.capacity_axes(story))
    table = memory.capacity_table(story)
    assert list(table["of the uncompressed"]) == ["1.00x", "5.75x"]
    assert table["tokens/s with a full pool"].tolist() == [
        "50 [45, 55]",
        "no step with all of them alone",
    ]
    memory.check(story)
    same = change(story, "kv-int8-snapkv-25", "extra.capacity_num_seqs", 4)
    assert "no more with any compression" in memory.capacity_sentence(same)
    assert title(memory.capacity_axes(same)).startswith("Nothing holds more sequences than auto")
    wrong = change(story, "kv-int8-snapkv-25", "extra.capacity_predicted_seqs", 30)
    with pytest.raises(AssertionError, match="memory model is off by 7"):
        memory.check(wrong)


def change(story: KVStory, candidate: str, column: str, value: Any) -> KVStory:
    table = story.data.table.copy()
    table.loc[table["extra.candidate"] == candidate, column] = value
    return KVStory(replace(story.data, table=table), story.floor)


def test_losses_are_those_that_chance_does_not_explain(story):
    assert title(quality.passkey_axes(story)) == (
        "snapkv-50 keeps 50% of the bytes and is not told from auto"
    )
    text = quality.presses_sentence(story)
    assert "find significantly fewer: `snapkv-25`" in text
    assert "not told from no compression: `snapkv-50`" in text
    assert "kv-int8" not in text, "it evicts nothing"
    assert "`snapkv-25` 50%" in quality.consistency_sentence(story)
    assert "snapkv-50 keeps the fewest bytes below the floor: 50%" in title(quality.kl_axes(story))
    table = quality.depth_table(story)
    assert table.loc["auto", "256 tokens"] == "1/2"
    assert table.loc["auto", "depth 0.1"] == "2/2"
    quality.check(story)
    losses = quality.losses_table(story).data
    assert losses.loc["snapkv-25", "lost / gained"] == "20 / 0"
    assert losses.loc["auto", "p"] == ""


def test_a_choice_that_loses_numbers_is_caught(story):
    chosen = {"compression": {**story.data.chosen["compression"], "chosen": "snapkv-25"}}
    wrong = KVStory(replace(story.data, chosen=chosen), story.floor)
    with pytest.raises(AssertionError, match="finds what was hidden"):
        quality.check(wrong)


def test_time_is_split_from_the_shortest_context(story):
    table = time.shares(story).set_index(["name", "context"])
    assert table.loc[("auto", 1000.0), "measured"] == pytest.approx(1 - 1.0 / 2.5)
    assert table.loc[("auto", 500.0), "predicted"] == pytest.approx(0.5)  # 8000 of 16000 bytes
    low, high = (table.loc[("auto", 1000.0), end] for end in ("low", "high"))
    assert low < 0.6 < high
    text = time.share_sentence(story)
    assert "**500 tokens** each" in text
    # 1/3 at 500 and 0.6 at 1000: half in between
    assert f"about {500 + 500 * (0.5 - 1 / 3) / (0.6 - 1 / 3):.0f} tokens" in text
    assert "60% of the time and 67% of the bytes" in title(time.share_axes(story))
    assert time.step_table(story).loc[1000.0, "kv-int8, speed"] == "1.67x"
    assert time.speed_sentence(story) == (
        "Against `auto`, throughput: 3 undecided; first token: 3 undecided."
    )
    base = "comparison.output_tokens_per_s"
    slow = change(story, "kv-int8", f"{base}.verdict", "worse")
    assert (
        "throughput: worse with `kv-int8` 0.90x [0.80, 1.05], 2 undecided;"
        in time.speed_sentence(slow)
    )
    time.check(story)


def test_time_that_never_reaches_half_is_said(story):
    samples = story.data.samples
    flat = samples["name"].eq("context.measured_s") & samples["slug"].eq("context.auto")
    changed = samples.assign(value=samples["value"].where(~flat, 0.001))
    text = time.share_sentence(KVStory(replace(story.data, samples=changed), story.floor))
    assert "not up to 1000 tokens" in text


def test_sharing_says_what_a_small_pool_loses(story):
    text = sharing.sharing_sentence(story)
    assert text.startswith("In conversations 50% of the prompt tokens were found")
    assert "saves 45%" in text and "(20% with the small pool)" in text
    requests = sharing.requests_of(story, "prefix_turns")
    small = requests.loc[requests["name"] == "cache-small", "kept"]
    assert small.tolist() == [0, pytest.approx(2 / 6), 1]
    assert "cache-on 50%, cache-small 20% of 50%" in title(sharing.hits_axes(story, "prefix_turns"))
    assert title(sharing.survivors_axes(story, "prefix_turns")) == (
        "cache-small: 1 of 3 prompts are still there in full, of the others the first 17%"
    )
    assert len(sharing.sharing_table(story)) == 3
    sharing.check(story)
    with pytest.raises(AssertionError, match="no more than is shared"):
        sharing.check(change(story, "cache-on", "extra.sharing_hit_share", 0.6))


def test_the_answer_names_choice_users_losses_and_limits(story):
    text = answer.answer(story)
    assert "Use **`auto`**" in text and "3 of 4 do" in text
    assert "Keys and values stay as they are" in text
    assert "`snapkv-50` with 50%, KL 0.015 nats" in text
    assert "**23**" in text and "**500 tokens**" in text
    table = answer.combinations_table(story).data
    assert table.loc["auto", "why not"] == "chosen"
    assert "KL" in table.loc["snapkv-25", "why not"]
    assert table.loc["auto", "sequences"] == "4"
    answer.check(story)


def test_what_was_not_measured_is_said(story):
    table = story.data.table.query("`extra.slice` == 'compression'")
    lone = KVStory(replace(story.data, table=table.reset_index(drop=True)), story.floor)
    for remark in (
        memory.capacity_axes(lone),
        memory.capacity_table(lone),
        time.share_axes(lone),
        time.step_table(lone),
        sharing.hits_axes(lone, "prefix_turns"),
        sharing.survivors_axes(lone, "prefix_turns"),
        sharing.sharing_table(lone),
    ):
        assert isinstance(remark, Remark)
    assert "not counted in this run" in answer.answer(lone)
    for module in (memory, quality, time, sharing, answer):
        module.check(lone)


def test_the_miniature_asks_every_question():
    specs = {spec.name: spec for spec in miniature_specs("kv_cache", "x")}
    assert list(specs) == ["compression", "capacity", "context", "prefix_turns"]
    assert [name for name, spec in specs.items() if spec.decides] == ["compression"]
    for spec in specs.values():
        assert spec.model == "x"
        for slug in spec.candidates:
            spec.engine_config(slug)
