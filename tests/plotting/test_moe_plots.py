"""That the plots of mixtures of experts show the numbers of their tables."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest
from matplotlib.container import ErrorbarContainer

from infopt import plotting
from infopt.errors import ResultError


def title(ax: Any) -> str:
    return ax.get_figure().get_suptitle().replace("\n", " ")


def points(ax: Any) -> list[Any]:
    return [c.lines[0] for c in ax.containers if isinstance(c, ErrorbarContainer)]


def test_measures_are_marked_by_their_verdicts(measures: pd.DataFrame) -> None:
    ax = plotting.measure_ratios(measures, reference="dense")
    assert [p.get_xdata()[0] for p in points(ax)] == list(measures["ratio"])
    assert [p.get_marker() for p in points(ax)] == ["^", "o", "v", "v"]
    assert [p.get_markerfacecolor() == "white" for p in points(ax)] == [False, True, False, False]
    assert [t.get_text() for t in ax.get_yticklabels()] == list(measures["measure"])
    assert title(ax) == "Against dense: 1 better, 2 worse, 1 undecided"
    low, high = ax.get_xlim()
    assert low < 0.7
    assert high > 1.7


def test_loads_are_shares_of_their_layer(loads: pd.DataFrame) -> None:
    ax = plotting.expert_loads(loads, 4)
    docs, code = points(ax)
    assert list(docs.get_ydata()) == pytest.approx([40, 30, 20, 10] * 2)
    assert set(code.get_ydata()) == {25}
    # Neither kinds nor layers lie upon each other.
    x = np.concatenate([docs.get_xdata(), code.get_xdata()])
    assert len(np.unique(np.round(x, 6))) == 16
    assert [t.get_text() for t in ax.get_xticklabels()] == ["layer 1", "layer 3"]
    assert "busiest expert serves 40% of a layer's tokens (on docs), the idlest 10%" in title(ax)


def test_distinct_experts_stand_beside_formula_and_bound(distinct: pd.DataFrame) -> None:
    ax = plotting.distinct_experts(distinct, 4)
    lines = {line.get_label(): list(line.get_ydata()) for line in ax.lines}
    assert lines["code"] == lines["even choices (formula)"] == [2.0, 3.0, 3.75, 3.98]
    assert lines["docs"] == pytest.approx([1.8, 2.7, 3.375, 3.582])
    assert lines["at most"] == [2, 4, 4, 4]
    assert "8 sequences of docs: 3.58 of 4 experts" in title(ax)
    assert ax.get_ylim()[1] > 4


@pytest.mark.parametrize("name", ["measure_ratios", "expert_loads", "distinct_experts"])
def test_a_table_without_its_columns_is_refused(name: str) -> None:
    options = {"reference": "dense"} if name == "measure_ratios" else {"num_experts": 4}
    with pytest.raises(ResultError, match=name):
        getattr(plotting, name)(pd.DataFrame({"kind": ["docs"]}), **options)
