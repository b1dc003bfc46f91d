"""Sentences, tables and plots of the notebook on power and cost, from known numbers."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pandas as pd
import pytest

from infopt.energy.prices import Prices
from infopt.experiments.findings import power_answer as answer
from infopt.experiments.findings import power_cost as cost
from infopt.experiments.findings.data import StageResults
from infopt.experiments.findings.miniature import miniature_specs
from infopt.experiments.findings.missing import Remark
from infopt.experiments.findings.power import PowerStory, order_sentence

QUOTE = {"date": "2026-11-01", "source": "made up for this test"}
PRICES = {
    "machine": {"currency": "EUR", "per_hour": 3.6, **QUOTE},
    "carbon": {"g_per_kwh": 360, **QUOTE},
    "elsewhere": {
        "api": {"currency": "EUR", "per_million_input": 10, "per_million_output": 40, **QUOTE}
    },
}
WORK = ("idle_core_s_per_token", "busy_core_s_per_token", "dram_bytes_per_token")


def row(slice_name: str, candidate: str, place: int, **values: Any) -> dict[str, Any]:
    common = {
        "run": f"power/{slice_name}.{candidate}",
        "slug": f"{slice_name}.{candidate}",
        "stage": "power",
        "status": "ok",
        "extra.slice": slice_name,
        "extra.candidate": candidate,
        "extra.position": place,
    }
    return common | values


def sized(slice_name: str, candidate: str, place: int, rate: float, work: tuple[float, ...]) -> Any:
    values = dict(zip((f"energy.{n}" for n in WORK), work, strict=True))
    return row(
        slice_name,
        candidate,
        place,
        **values,
        **{
            "throughput.output_tokens_per_s": rate,
            "throughput.requests_per_s": rate / 10,
            "latency.ttft_s.p50": 0.1,
            "latency.tpot_s.p50": 0.02,
            "energy.source": "modelled",
            "energy.j_per_token": 0.5,
            "energy.j_per_token_low": 0.2,
            "energy.j_per_token_high": 0.9,
            "energy.j_per_request": 5.0,
            "energy.j_per_request_low": 2.0,
            "energy.j_per_request_high": 9.0,
            "energy.prefill_j_per_prompt_token": 0.01,
            "energy.decode_j_per_token": 0.3,
            "energy.idle_j": 2.0,
            "energy.joules": 40.0,
            "energy.split": "time",
            "extra.prefill_s_per_token": 0.001,
            "extra.decode_s_per_token": 0.01,
            "extra.machine_share": 0.5 if place == 0 else 1.0,
        },
    )


def started() -> dict[str, Any]:
    figures = {"cold_start_s": 4.0, "ready_s": 3.5, "first_start_s": 9.0, "weights_bytes": 2**27}
    even = {"start_j": 60.0, "warm_watts": 1.5, "hold_s": 40.0, "break_even_per_s": 0.025}
    return row("cold_start", "none", 0, **{f"extra.{n}": v for n, v in (figures | even).items()})


def entry(chosen: str, reference: str, status: str, reason: str) -> dict[str, Any]:
    return {"chosen": chosen, "reference": reference, "status": status, "reason": reason}


def make_story(rows: list[dict[str, Any]] | None = None, prices: Any = None) -> PowerStory:
    if rows is None:
        small = sized("threads", "threads-1", 0, 100.0, (1.0, 1.0, 1e6))
        whole = sized("threads", "threads-2", 1, 160.0, (2.0, 2.0, 2e6))
        whole["energy.j_per_token"] = 0.8
        rows = [small, whole, started()]
    chosen = {
        "threads": entry("threads-2", "threads-2", "undecided", "It is the default."),
        "replicas": entry("none", "none", "skipped", "one core: there is nothing to divide"),
    }
    names = ("prompt_tokens", "output_tokens", "prefill_j", "decode_j")
    samples = [
        {"slug": "threads.threads-2", "name": f"requests.{n}", "index": i, "value": v}
        for n, values in zip(names, ([8, 9], [4, 5], [1.0, 2.0], [6.0, 7.0]), strict=True)
        for i, v in enumerate(values)
    ]
    data = StageResults(pd.DataFrame(rows), pd.DataFrame(samples), chosen, "note", False)
    return PowerStory(data, Prices.from_dict(prices or {}))


def test_without_prices_money_is_empty_with_the_reason_and_the_rest_stands():
    story = make_story()
    text = answer.answer(story)
    assert "no price of the machine is configured" in text
    assert "0.8 J (derived from constants, 0.2 to 0.9 over their ranges)" in text
    assert isinstance(cost.break_even_axes(story), Remark)
    assert isinstance(cost.cost_axes(story), Remark)
    answer.check(story)


def test_money_by_hand():
    """3.6 an hour at 160 tokens/s: 6.25 a million; half of the machine at 100: 5."""
    story = make_story(prices=PRICES)
    assert "6.25 EUR for a million output tokens" in cost.money_sentence(story)
    table = answer.sizes_table(story).data
    assert list(table["per million tokens"]) == ["5 EUR", "6.25 EUR"]
    # 0.8 J/token x 360 g per 3.6 MJ
    assert "emit 80 g" in cost.energy_sentence(story)


def test_the_break_even_by_hand():
    """256 + 64 tokens cost 5.12e-3 elsewhere, a second 1e-3: 0.195 of the 1.12 requests/s."""
    text = cost.elsewhere_sentence(make_story(prices=PRICES))
    assert "from 0.2 requests/s against `api` (it takes 1.1)" in text


def test_keeping_warm_by_hand():
    text = answer.start_sentence(make_story())
    assert "less than 40 s apart" in text
    assert "below 90 an hour" in text
    assert answer.starts_table(make_story()).data["start (s)"].tolist() == ["4.00"]


@pytest.mark.parametrize(
    ("other", "words"),
    [
        ((2.0, 2.0, 2e6), "the least at all ends"),
        ((0.1, 2.0, 1e6), "can be above that of threads-2"),
    ],
)
def test_the_order_by_energy_says_whether_it_survives_the_ranges(other, words):
    small = sized("threads", "threads-1", 0, 100.0, (1.0, 1.0, 1e6))
    whole = sized("threads", "threads-2", 1, 160.0, other)
    whole["energy.j_per_token"] = 0.8
    assert words in order_sentence([small, whole])


def test_what_was_skipped_says_why():
    text = answer.size_sentences(make_story())
    assert "`replicas` was skipped: one core: there is nothing to divide" in text
    assert isinstance(answer.size_axes(make_story(), "replicas"), Remark)


def test_every_plot_is_drawn_with_its_finding():
    story = make_story(prices=PRICES)
    titles = [
        axes.get_figure(root=True).get_suptitle()
        for axes in (
            answer.size_axes(story, "threads"),
            answer.request_axes(story),
            answer.start_axes(story),
            cost.work_axes(story),
            cost.break_even_axes(story),
            cost.cost_axes(story),
        )
    ]
    assert "threads-1 takes the least energy per token" in titles[0].replace("\n", " ")
    assert "19%" in titles[1]  # 3 of 16 joules
    assert "a machine is cheaper" in titles[5].replace("\n", " ")
    assert all(titles)


def test_requests_of_one_length_are_told_in_words():
    story = make_story()
    samples = story.data.samples.copy()
    for name, value in (("prompt_tokens", 8.0), ("output_tokens", 4.0)):
        samples.loc[samples["name"] == f"requests.{name}", "value"] = value
    same = PowerStory(replace(story.data, samples=samples), story.prices)
    assert answer.request_axes(same).text.startswith(
        "All requests have 8 + 4 tokens. One takes 1.5 J for its prompt and 6.5 J for its output"
    )


def test_the_answer_is_checked():
    story = make_story()
    story.data.table.loc[0, "energy.j_per_token_high"] = 0.1
    with pytest.raises(AssertionError):
        answer.check(story)


def test_a_run_without_energy_says_so():
    small = sized("threads", "threads-1", 0, 100.0, (1.0, 1.0, 1e6))
    energies = [n for n in small if n.startswith("energy.")]
    for name in energies:
        small[name] = None
    small["energy.reason"] = "energy metering is off"
    story = make_story([small | {"extra.candidate": "threads-2"}])
    assert "none: energy metering is off" in cost.energy_sentence(story)
    assert "does not tell" in answer.requests_sentence(story)


def test_the_miniature_asks_the_same_questions():
    names = [spec.name for spec in miniature_specs("power", "some-model")]
    assert names == ["threads", "replicas", "cold_start"]


def test_a_machine_that_is_paid_for_is_cheaper_from_the_first_request_on(recwarn):
    """Pins: its break-even at no traffic was drawn as the logarithm of 0, with a warning in the
    notebook; and the price of a derived energy was not called derived."""
    quote = {"date": "2026-11-01", "source": "made up"}
    prices = {
        "machine": {"currency": "EUR", "per_hour": 0, **quote},
        "electricity": {"currency": "EUR", "per_kwh": 0.3, **quote},
        "elsewhere": {
            "api": {"currency": "EUR", "per_million_input": 1, "per_million_output": 4, **quote}
        },
    }
    rows = [row_ | {"energy.watts": 80.0} for row_ in make_story().data.table.to_dict("records")]
    story = make_story(rows, prices)
    axes = cost.break_even_axes(story)
    texts = {text.get_text() for text in axes.texts}
    assert "0" in texts
    assert not [w for w in recwarn if issubclass(w.category, RuntimeWarning)]
    assert "from the first request on against `api`" in answer.answer(story)
    assert "electricity for a derived energy" in answer.answer(story)


def test_a_price_that_nothing_was_measured_for_is_not_called_missing():
    """Pins: on one core, which has no instances to compare, a configured price was denied."""
    text = cost.money_sentence(make_story([started()], PRICES))
    assert "no instance was measured" in text
    assert "no price of the machine" in cost.money_sentence(make_story([started()]))
