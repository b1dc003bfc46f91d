"""Plots of routing: what is drawn, and where."""

from __future__ import annotations

import pytest

from infopt import plotting
from infopt.results.metrics import Metric

SECONDS = Metric("seconds", "Time per prompt", "ms", better="lower", display_scale=1000.0)
SHARE = Metric("share", "Strong", "%", display_scale=100.0)


def title(ax):
    return ax.get_figure(root=True).get_suptitle().replace("\n", " ")


def test_the_random_policy_is_a_straight_dashed_line(routes):
    ax = plotting.routing_curves(routes, x=SHARE)
    dashed = [line for line in ax.get_lines() if line.get_linestyle() == "--"]
    assert len(dashed) == 1
    assert dashed[0].get_xdata() == pytest.approx([0, 100])
    assert dashed[0].get_ydata() == pytest.approx([30, 50])
    labels = [text.get_text() for text in ax.get_legend().get_texts()]
    assert labels == ["classifier", "cascade", "random"]
    assert "classifier has the highest mean" in title(ax)


def test_costs_are_shown_in_their_unit(routes):
    ax = plotting.routing_curves(routes, x=SECONDS)
    assert "ms" in ax.get_xlabel()
    assert "better" in ax.get_xlabel()
    ends = [line.get_xdata()[-1] for line in ax.get_lines() if len(line.get_xdata()) == 5]
    assert ends == pytest.approx([220, 240])


def test_without_a_random_policy_the_first_one_gives_the_ends(routes):
    ax = plotting.routing_curves(routes.loc[routes["policy"] != "random"], x=SHARE)
    dashed = [line for line in ax.get_lines() if line.get_linestyle() == "--"]
    assert dashed[0].get_ydata() == pytest.approx([30, 50])


def test_lifts_show_their_verdicts(lifts):
    ax = plotting.routing_lifts(lifts)
    assert [text.get_text() for text in ax.get_yticklabels()] == lifts["policy"].tolist()
    assert "1 better, 1 worse, 1 undecided" in title(ax)
    hollow = [line for line in ax.get_lines() if line.get_markerfacecolor() == "white"]
    assert len(hollow) == 1
    assert "points" in ax.get_xlabel()


@pytest.mark.parametrize("column", ["quality_low", "seconds"])
def test_missing_columns_are_named(routes, column):
    with pytest.raises(Exception, match=column):
        plotting.routing_curves(routes.drop(columns=column), x=SECONDS)


def test_missing_verdicts_are_named(lifts):
    with pytest.raises(Exception, match="verdict"):
        plotting.routing_lifts(lifts.drop(columns="verdict"))
