"""What the notebook on trade-offs says, from made-up recommendations."""

import dataclasses
import inspect

import pandas as pd
import pytest

from infopt.experiments.findings import tradeoffs
from infopt.select import Recommendation
from infopt.select.ablation import Effect

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
    found = Recommendation(**{**empty, "run": RUN, "reason": "It is best.", "status": "chosen"})
    finalists = pd.DataFrame({
        "run": [RUN],
        "status": ["ok"],
        "extra.candidate": ["composed"],
        tradeoffs.THROUGHPUT: [300.0],
        tradeoffs.TTFT: [0.1],
    })  # fmt: skip
    found = dataclasses.replace(found, ablation=effects)
    return tradeoffs.TradeoffStory(found, finalists, note="")


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
    assert "page_size" not in text


def test_an_interval_that_does_not_hold_its_median_is_found():
    with pytest.raises(AssertionError):
        tradeoffs.check(story(effect("schemes", 1.4, 1.5, 1.6)))
