"""What plots of power and cost show, read off their artists."""

from __future__ import annotations

from typing import Any

import pandas as pd
import pytest

from infopt import plotting


def texts(ax: Any) -> list[str]:
    return [text.get_text() for text in ax.texts]


def test_lengths_without_a_value_are_named(drawn) -> None:
    assert sorted(texts(drawn("lengths_map"))).count("never") == 2


def test_break_even_points_lie_on_both_lines(drawn) -> None:
    """30 J for a start against 1.5 W: 0.05 requests per second."""
    ax = drawn("keep_warm_curves")
    points = [line for line in ax.get_lines() if line.get_marker() == "o"]
    assert [p.get_xdata()[0] for p in points] == [pytest.approx(0.05), pytest.approx(0.125)]
    assert [p.get_ydata()[0] for p in points] == [30.0, 12.0]


def test_derived_energies_say_so_on_their_axis(drawn) -> None:
    for name in ("size_tradeoff", "keep_warm_curves", "request_energy"):
        assert "derived" in drawn(name).get_ylabel()


def test_requests_of_equal_lengths_are_one_bar() -> None:
    columns = ("prompt_tokens", "output_tokens", "prefill_j", "decode_j")
    rows = [(32, 8, 1.0, 2.0), (32, 8, 3.0, 2.0), (64, 8, 5.0, 2.0)]
    table = pd.DataFrame(rows, columns=pd.Index(columns))
    ax = plotting.request_energy(table, title="a finding", is_derived=False)
    assert [bar.get_height() for bar in ax.containers[0]] == [2.0, 5.0]
    assert [text.get_text() for text in ax.get_xticklabels()] == ["32+8", "64+8"]


def test_requests_are_sorted_and_their_parts_stacked(drawn) -> None:
    ax = drawn("request_energy")
    prefill, decode = ax.containers
    tops = [bar.get_y() + bar.get_height() for bar in decode]
    assert tops == sorted(tops)
    starts = [bar.get_y() for bar in decode]
    assert starts == pytest.approx([bar.get_height() for bar in prefill])
