"""That the plots of speculation show the numbers of their tables."""

from __future__ import annotations

from typing import Any

import pandas as pd
import pytest
from matplotlib.container import ErrorbarContainer

from infopt import plotting
from infopt.errors import ResultError

DECISIONS = ("on", "probe", "off", "empty", "learn")


@pytest.fixture
def cells() -> pd.DataFrame:
    rows = [
        ("edit", 1, 2.0, 1.9, 2.1, "better", 2.05, (60, 0, 0, 40, 0)),
        ("edit", 8, 0.9, 0.85, 0.95, "worse", 1.2, (10, 5, 85, 0, 0)),
        ("chat", 1, 1.01, 0.97, 1.05, "undecided", 1.0, (0, 0, 0, 100, 0)),
    ]
    table = pd.DataFrame(
        [
            {
                "candidate": "auto",
                "traffic": traffic,
                "batch": batch,
                "ratio": ratio,
                "low": low,
                "high": high,
                "verdict": verdict,
                "predicted": predicted,
                **{f"steps_{name}": n for name, n in zip(DECISIONS, steps, strict=True)},
            }
            for traffic, batch, ratio, low, high, verdict, predicted, steps in rows
        ]
    )
    return table


def title(ax: Any) -> str:
    return ax.get_figure().get_suptitle().replace("\n", " ")


def markers(ax: Any) -> list[Any]:
    return [c.lines[0] for c in ax.containers if isinstance(c, ErrorbarContainer)]


def test_gains_have_intervals_and_open_points(cells: pd.DataFrame) -> None:
    ax = plotting.cell_gains(cells, name="auto")
    assert [m.get_xdata()[0] for m in markers(ax)] == [2.0, 0.9, 1.01]
    assert [m.get_markerfacecolor() == "white" for m in markers(ax)] == [False, False, True]
    assert [t.get_text() for t in ax.get_yticklabels()] == [
        *("edit, 1 at once", "edit, 8 at once", "chat, 1 at once")
    ]
    assert "1 of 3 kinds of traffic gain, 1 lose" in title(ax)
    assert "2.00x on edit, 1 at once" in title(ax)


def test_acceptance_falls_with_position() -> None:
    table = pd.DataFrame(
        {
            "traffic": ["edit"] * 2 + ["chat"],
            "position": [1, 2, 1],
            "proposed": [100, 80, 10],
            "rate": [0.9, 0.5, 0.1],
            "low": [0.8, 0.4, 0.0],
            "high": [0.95, 0.6, 0.4],
        }
    )
    ax = plotting.acceptance_by_position(table, name="suffix")
    assert list(markers(ax)[0].get_ydata()) == pytest.approx([90, 50])
    assert "first guesses are kept in 90% on edit, 10% on chat" in title(ax)
    assert "(%)" in ax.get_ylabel()


def test_decisions_fill_the_bar(cells: pd.DataFrame) -> None:
    ax = plotting.decision_shares(cells)
    widths = [[patch.get_width() for patch in container] for container in ax.containers]
    assert [sum(column) for column in zip(*widths, strict=True)] == pytest.approx([100, 100, 100])
    assert widths[0] == pytest.approx([60, 10, 0])
    assert "60 % of the steps on edit, 1 at once, in 0 % on chat, 1 at once" in title(ax)


def test_gains_far_from_the_formula_are_counted(cells: pd.DataFrame) -> None:
    ax = plotting.formula_scatter(cells)
    assert title(ax) == "2 of 3 measured gains are within 10 % of the formula"
    assert list(markers(ax)[0].get_xdata()) == [2.05, 1.2, 1.0]


def test_missing_columns_are_named(cells: pd.DataFrame) -> None:
    with pytest.raises(ResultError, match="steps_on"):
        plotting.decision_shares(cells.drop(columns=["steps_on"]))
