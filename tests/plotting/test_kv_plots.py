"""That the plots of the KV cache show the numbers of their tables."""

from __future__ import annotations

from typing import Any

import pandas as pd
import pytest
from matplotlib.container import ErrorbarContainer

from infopt import plotting
from infopt.errors import ResultError
from infopt.results.metrics import Metric


def points(ax: Any) -> list[Any]:
    return [c.lines[0] for c in ax.containers if isinstance(c, ErrorbarContainer)]


def test_quality_lies_over_kept_bytes() -> None:
    table = pd.DataFrame(
        {
            "name": ["auto", "snapkv-50"],
            "kept": [1.0, 0.5],
            "value": [1.0, 0.4],
            "low": [0.9, 0.3],
            "high": [1.0, 0.5],
            "differs": [False, True],
        }
    )
    metric = Metric("passkey", "Found", "%", "higher", 100)
    ax = plotting.kept_quality(table, metric, lines={"auto": 1.0}, title="a finding")
    assert [(p.get_xdata()[0], p.get_ydata()[0]) for p in points(ax)] == [(100, 100), (50, 40)]
    assert [p.get_markerfacecolor() == "white" for p in points(ax)] == [True, False]
    assert "(%)" in ax.get_xlabel() and "hollow" in ax.get_xlabel()
    assert ax.get_ylabel().startswith("Found (%)")
    with pytest.raises(ResultError):
        plotting.kept_quality(table.drop(columns="differs"), metric, title="x")


def test_shares_are_drawn_measured_and_predicted() -> None:
    table = pd.DataFrame(
        {
            "name": ["auto", "auto"],
            "context": [100, 200],
            "measured": [0.2, 0.4],
            "low": [0.1, 0.3],
            "high": [0.3, 0.5],
            "predicted": [0.25, 0.5],
        }
    )
    ax = plotting.kv_share(table, title="a finding")
    (measured,) = points(ax)
    assert measured.get_ydata() == pytest.approx([20, 40])
    dashed = [line for line in ax.lines if line.get_linestyle() == "--" and len(line.get_xdata())]
    assert any(list(line.get_ydata()) == [25, 50] for line in dashed)
    assert "tokens" in ax.get_xlabel() and "(%)" in ax.get_ylabel()


def test_counts_are_bars_and_predictions_marks() -> None:
    table = pd.DataFrame(
        {
            "extra.candidate": ["auto", "kv-int8"],
            "extra.capacity_num_seqs": [4, 7],
            "extra.capacity_predicted_seqs": [4, 8],
        }
    )
    ax = plotting.capacity_bars(table, title="a finding")
    assert [bar.get_width() for bar in ax.patches] == [4, 7]
    assert any(list(line.get_xdata()) == [4, 8] for line in ax.lines)
    assert {"4", "7"} <= {text.get_text() for text in ax.texts}


def test_hits_add_up_over_requests_and_survivors_do_not() -> None:
    table = pd.DataFrame(
        {
            "name": ["cache-on"] * 2 + ["cache-small"] * 2,
            "prompt": [100, 100] * 2,
            "cached": [0, 80, 0, 40],
            "shareable": [0, 80] * 2,
            "kept": [1.0, 1.0, 0.0, 1.0],
        }
    )
    ax = plotting.prefix_hits(table, title="a finding")
    drawn = {line.get_label(): list(line.get_ydata()) for line in ax.lines}
    assert drawn["cache-on"] == drawn["room for everything"] == [0, 40]
    assert drawn["cache-small"] == [0, 20]
    bars = plotting.prefix_survivors(table, title="a finding").patches
    assert [bar.get_height() for bar in bars] == [100, 100, 0, 100]
