"""What the notebook says about routing follows from the numbers it is given."""

from __future__ import annotations

from typing import Any

import pandas as pd
import pytest

from infopt.experiments.findings import routing as findings
from infopt.experiments.findings.data import StageResults
from infopt.experiments.findings.missing import Remark
from infopt.experiments.findings.moe import MoeStory
from infopt.select import FLOORS

SHARES = (0.0, 0.5, 1.0)
# policy: quality by share, lift, verdict, share that recovers 80 %, seconds by share
POLICIES: dict[str, Any] = {
    "random": ((0.4, 0.5, 0.6), 0.0, "undecided", 0.8, (0.1, 0.55, 1.0)),
    "classifier": ((0.4, 0.6, 0.6), 0.05, "better", 0.4, (0.1, 0.55, 1.0)),
    "cascade": ((0.4, 0.55, 0.6), 0.025, "undecided", 0.7, (0.1, 0.6, 1.1)),
}


def story_of(policies: dict[str, Any], *, gap: bool = True) -> MoeStory:
    row: dict[str, Any] = {
        "run": "moe/routing.cheap",
        "stage": "moe",
        "slug": "routing.cheap",
        "status": "ok",
        "hardware_id": "one",
        "extra.slice": "routing",
        "extra.candidate": "cheap",
        "extra.position": 1,
    }
    samples: dict[str, tuple[float, ...]] = {}
    for name, (quality, lift, verdict, share, seconds) in policies.items():
        base = f"extra.routing_{name}_"
        row |= {
            f"{base}lift": lift,
            f"{base}lift_low": lift - 0.03,
            f"{base}lift_high": lift + 0.03,
        }
        row |= {f"{base}verdict": verdict, f"{base}cpt_0.8": share if gap else None}
        samples |= {
            f"routing.{name}.share": SHARES,
            f"routing.{name}.quality": quality,
            f"routing.{name}.quality_low": tuple(q - 0.1 for q in quality),
            f"routing.{name}.quality_high": tuple(q + 0.1 for q in quality),
            f"routing.{name}.seconds": seconds,
        }
    for group, cheap in (("all", 0.4), ("code", 0.3)):
        figures = {"num_items": 50, "cheap": cheap, "strong": 0.6, "difference": cheap - 0.6}
        figures |= {"low": -0.3, "high": -0.1, "num_gained": 5, "num_lost": 15, "p_value": 0.04}
        row |= {f"extra.ab_{group}_{key}": value for key, value in figures.items()}
        row[f"extra.ab_{group}_seconds_median"] = 0.1
    long = [
        {"slug": "routing.cheap", "name": name, "index": i, "value": value}
        for name, values in samples.items()
        for i, value in enumerate(values)
    ]
    data = StageResults(pd.DataFrame([row]), pd.DataFrame(long), {}, "", is_miniature=False)
    return MoeStory(data, FLOORS.get("default"))


@pytest.fixture
def story() -> MoeStory:
    return story_of(POLICIES)


def test_policies_and_curves_come_in_order(story):
    assert findings.policies(story) == list(POLICIES)
    table = findings.curve_table(story)
    assert len(table) == 9
    assert table.loc[table["policy"] == "cascade", "seconds"].tolist() == [0.1, 0.6, 1.1]
    assert findings.lift_table(story)["policy"].tolist() == ["classifier", "cascade"]


def test_sentences_name_who_won(story):
    assert findings.verdict_sentence(story) == (
        "Better than a random policy of the same share: `classifier` (+5.0 points)"
    )
    sentence, name = findings.recovery_sentence(story)
    assert name == "classifier"
    # 0.1 s at 0 and 0.55 s at a half: 0.46 s at 0.4, of 1 s for the strong model alone.
    assert "a share of 40% and 460 ms per prompt (0.46x of strong alone)" in sentence
    assert "classifier" in findings.routing_lines(story)[0]


def test_nobody_wins():
    losers = {name: values for name, values in POLICIES.items() if name != "classifier"}
    assert "No policy beats" in findings.verdict_sentence(story_of(losers))


def test_chance_may_be_the_cheapest():
    dear = {"random": POLICIES["random"], "cascade": (*POLICIES["cascade"][:3], 0.9, (1, 2, 3))}
    lines = findings.routing_lines(story_of(dear))
    assert any("cheaper than chance" in line for line in lines)


def test_without_a_gap_nothing_is_recovered():
    sentence, name = findings.recovery_sentence(story_of(POLICIES, gap=False))
    assert name is None
    assert "no gap to recover" in sentence


def test_the_pair_is_shown_by_task(story):
    table = findings.pair_table(story)
    assert list(table.index) == ["all", "code"]
    assert table.loc["code", "difference (points)"] == "-30 [-30, -10]"
    assert table.loc["code", "only cheap / only strong right"] == "5 / 15"
    assert table.loc["code", "time, cheap / strong"] == "0.100x"


def test_plots_have_findings_as_titles(story):
    for draw, found in (
        (findings.curve_axes, "the best point is classifier with 60% at a share of 50%"),
        (findings.cost_axes, "cost least with classifier"),
        (findings.lift_axes, "classifier (+5.0 points)"),
    ):
        text = draw(story).get_figure(root=True).get_suptitle().replace("\n", " ")
        assert found in text
    findings.check_routing(story)


def test_curves_that_do_not_meet_are_refused():
    wrong = POLICIES | {"cascade": ((0.5, 0.55, 0.6), *POLICIES["cascade"][1:])}
    with pytest.raises(AssertionError):
        findings.check_routing(story_of(wrong))


def test_a_run_without_routing_says_so():
    row = {"extra.slice": "pair", "extra.candidate": "moe", "slug": "pair.moe"}
    data = StageResults(pd.DataFrame([row]), pd.DataFrame(), {}, "", is_miniature=False)
    story = MoeStory(data, FLOORS.get("default"))
    for part in (
        findings.pair_table,
        findings.curve_axes,
        findings.cost_axes,
        findings.lift_axes,
    ):
        assert isinstance(part(story), Remark)
    assert findings.routing_lines(story) == []
    assert "not part of this run" in findings.verdict_sentence(story)
    findings.check_routing(story)
