"""What the notebook on trade-offs says, from made-up recommendations."""

import dataclasses
import inspect

import pandas as pd
import pytest

from infopt.config import EngineConfig
from infopt.experiments.figures import finalists_axes
from infopt.experiments.findings import tradeoffs
from infopt.experiments.findings.missing import Remark
from infopt.select import Recommendation
from infopt.select.ablation import Effect
from infopt.select.recommendation import BaselineGain, Sensitivity

RUN = "select/finalists.composed"


def effect(technique, worth, low, high, verdict="better"):
    return Effect(
        technique=technique,
        run=f"select/finalists.without-{technique}",
        column=tradeoffs.THROUGHPUT,
        label="Output throughput (tokens/s)",
        composed=300.0,
        without=300.0 / worth,
        worth=worth,
        low=low,
        high=high,
        verdict=verdict,
    )


def story(*effects):
    empty = dict.fromkeys(inspect.signature(Recommendation).parameters)
    empty |= dict.fromkeys(("ties", "sensitivity", "notes", "baselines", "interactions"), ())
    config = EngineConfig(model="tiny-dense", max_num_seqs=5).to_dict()
    known = {"run": RUN, "reason": "It is best.", "status": "chosen", "config": config}
    found = Recommendation(**{**empty, **known})
    finalists = pd.DataFrame({
        "run": [RUN],
        "status": ["ok"],
        "extra.candidate": ["composed"],
        tradeoffs.THROUGHPUT: [300.0],
        tradeoffs.TTFT: [0.1],
    })  # fmt: skip
    found = dataclasses.replace(found, ablation=effects)
    return tradeoffs.TradeoffStory(found, finalists, note="")


def gain(name, goodput, ratio, low, high):
    message = f"It is {ratio} times as good as {name}."
    return BaselineGain(
        name, f"select/{name}", 7.0, goodput, 22.0, ratio, low, high, 6, 1.0, message
    )


def three(found):
    """Add two rivals: one far behind, one that lacks its quality."""
    table = pd.DataFrame({
        "run": [RUN, "select/finalists.unoptimized", "select/finalists.without-schemes"],
        "status": "ok",
        "extra.candidate": ["composed", "unoptimized", "without-schemes"],
        tradeoffs.THROUGHPUT: [300.0, 80.0, 250.0],
        tradeoffs.TTFT: [0.05, 0.9, 0.06],
        tradeoffs.ENERGY: [0.4, 1.5, 0.5],
        tradeoffs.QUALITY: [0.01, 0.0, None],
    })  # fmt: skip
    return dataclasses.replace(found, finalists=table)


def title(axes):
    return " ".join(axes.get_figure().get_suptitle().split())


def test_the_front_names_the_choice_and_what_is_not_shown():
    axes = tradeoffs.front_axes(three(story()))
    assert title(axes) == "Chosen: composed, at 50 ms and 300 tokens/s"
    assert {"composed", "without-schemes"} == {text.get_text() for text in axes.texts}
    assert "not shown: unoptimized, at 900 ms and 80 tokens/s" in axes.get_xlabel()
    axes = tradeoffs.front_axes(three(story()), tradeoffs.ENERGY, tradeoffs.QUALITY)
    assert "not measured: without-schemes" in axes.get_xlabel()


def test_the_choice_stands_beside_the_baselines():
    found = story()
    assert isinstance(tradeoffs.baselines_axes(found), Remark)
    gains = (gain("static", 5.5, 4.0, 3.2, 4.9), gain("continuous", 20.0, 1.1, 1.05, 1.15))
    both = dataclasses.replace(found.recommendation, baselines=gains)
    axes = tradeoffs.baselines_axes(dataclasses.replace(found, recommendation=both))
    assert title(axes) == "22 requests/s keep the objective, 4.0x static and 1.1x continuous"
    assert [bar.get_width() for bar in axes.patches] == [22.0, 5.5, 20.0]
    figure = finalists_axes(three(found).finalists, both).get_figure()
    assert len(figure.axes) == 2


def test_runs_are_called_by_their_names_in_sentences():
    message = f"If the limit were 20 ms, {RUN} would be chosen."
    change = Sensitivity("tighten", "ttft_s", 0.3, 0.02, RUN, message)
    found = story()
    changed = dataclasses.replace(found.recommendation, sensitivity=(change,))
    text = tradeoffs.sensitivity_sentence(dataclasses.replace(found, recommendation=changed))
    assert text == "- If the limit were 20 ms, composed would be chosen."


def test_the_technique_that_is_worth_most_is_the_title():
    axes = tradeoffs.worth_axes(
        story(effect("schemes", 1.4, 1.3, 1.5), effect("page_size", 1.01, 0.98, 1.05, "undecided"))
    )
    title = " ".join(axes.get_figure().get_suptitle().split())
    assert "schemes is worth most, 1.40x" in title


def test_a_composition_of_references_has_a_sentence_in_place_of_the_plot():
    axes = tradeoffs.worth_axes(story())
    assert not axes.axison
    assert "No technique differs" in " ".join(text.get_text() for text in axes.texts)


def test_the_answer_names_what_helps_beyond_doubt():
    text = tradeoffs.answer(
        story(effect("schemes", 1.4, 1.3, 1.5), effect("page_size", 1.01, 0.98, 1.05, "undecided"))
    )
    assert "schemes (1.40x)" in text
    assert "That is `model: tiny-dense`, `max_num_seqs: 5`; every other option" in text
    assert "page_size" not in text


def test_an_interval_that_does_not_hold_its_median_is_found():
    with pytest.raises(AssertionError):
        tradeoffs.check(story(effect("schemes", 1.4, 1.5, 1.6)))


def test_without_a_choice_nothing_would_change_it():
    """Pins: where no finalist kept every limit, no limit was said to change the choice."""
    found = story()
    nothing = dataclasses.replace(found.recommendation, run=None, config=None)
    text = tradeoffs.sensitivity_sentence(dataclasses.replace(found, recommendation=nothing))
    assert text == "There is no choice to change: no finalist keeps every limit."
