"""That the plots of weight formats show the numbers of their tables."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest
from matplotlib.colors import to_hex
from matplotlib.container import BarContainer, ErrorbarContainer

from infopt import plotting
from infopt.errors import ResultError

RATIO = "quality.perplexity_ratio.docs.ratio"


def title(ax: Any) -> str:
    return ax.get_figure().get_suptitle().replace("\n", " ")


def points(ax: Any) -> list[Any]:
    """Return the marker lines of all points with error bars."""
    return [c.lines[0] for c in ax.containers if isinstance(c, ErrorbarContainer)]


def texts(ax: Any) -> list[str]:
    return [text.get_text() for text in ax.texts]


def test_quality_lies_over_bits_and_says_what_runs_how(schemes: pd.DataFrame) -> None:
    ax = plotting.quality_bits(schemes, limits={"floor": 0.02, "lossy": 0.1})
    found = [(p.get_xdata()[0], p.get_ydata()[0]) for p in points(ax)]
    expected = zip(schemes["extra.bits"], schemes["quality.kl_mean"], strict=True)
    assert found == list(expected)
    assert [p.get_markerfacecolor() == "white" for p in points(ax)] == [False, True, False, False]
    assert {"none", "q4_1", "int8 †", "int4-rtn-g64", "floor", "lossy"} <= set(texts(ax))
    assert title(ax) == "Mean KL to the reference: 5 bits are the fewest below the floor, with q4_1"
    assert "hollow" in ax.get_xlabel() and "†" in ax.get_xlabel()
    low, high = ax.get_ylim()
    assert low < 0 < high, "no loss at all has a place on the axis"


def test_a_mark_that_no_scheme_has_is_not_explained(schemes: pd.DataFrame) -> None:
    plain = schemes.assign(**{"extra.is_stored": False, "extra.is_dequantized": False})
    label = plotting.quality_bits(plain).get_xlabel()
    assert "hollow" not in label and "†" not in label


def test_perplexity_is_per_cent_above_the_reference(schemes: pd.DataFrame) -> None:
    ax = plotting.quality_bits(schemes, RATIO, limits={"floor": 1.02})
    assert [p.get_ydata()[0] for p in points(ax)] == pytest.approx([0, -0.1, 0.4, 50])
    assert "(%)" in ax.get_ylabel()
    assert any(line.get_ydata()[0] == pytest.approx(2) for line in ax.lines), "the floor, in %"


def test_nothing_below_the_floor_is_said(schemes: pd.DataFrame) -> None:
    ax = plotting.quality_bits(schemes.iloc[3:], limits={"floor": 0.02})
    assert title(ax).endswith("nothing stays below the floor")


def test_gains_are_hollow_where_the_interval_contains_one(gains: pd.DataFrame) -> None:
    ax = plotting.batch_gain(gains, reference="none (bfloat16)")
    drawn = {(p.get_xdata()[0], p.get_ydata()[0]): p.get_markerfacecolor() for p in points(ax)}
    assert {place: face == "white" for place, face in drawn.items()} == {
        (1, 2.0): False,
        (4, 1.0): True,
        (1, 3.0): False,
        (4, 1.5): False,
    }
    dashed = [
        line for line in ax.lines if line.get_linestyle() == "--" and len(line.get_xdata()) == 3
    ]
    assert [list(line.get_xdata()) for line in dashed] == [[1, 4, 16]] * 2
    assert dashed[0].get_ydata() == pytest.approx(gains["predicted"][:3].tolist())
    assert title(ax) == "int4-rtn-g64: 3x at 1, 1.5x at 4 sequences"
    assert "hollow: undecided" in ax.get_xlabel()
    decided = gains.assign(low=1.1, high=gains["high"] + 1)
    assert "hollow" not in plotting.batch_gain(decided).get_xlabel()
    assert "none (bfloat16)" in ax.get_legend_handles_labels()[1]


def test_a_prediction_alone_is_called_one(gains: pd.DataFrame) -> None:
    gains[["measured", "low", "high"]] = np.nan
    assert "nothing was measured" in title(plotting.batch_gain(gains))


def test_bars_of_parts_stand_at_their_layer_and_the_head_apart(parts: pd.DataFrame) -> None:
    ax = plotting.sensitivity_bars(parts)
    bars = {c.get_label(): list(c) for c in ax.containers if isinstance(c, BarContainer)}
    heights = {name: [bar.get_height() for bar in own] for name, own in bars.items()}
    assert heights == {
        "attention": [0.001, 0.003],
        "MLP": [0.002, 0.004],
        "output head": [0.03],
    }
    (head,) = bars["output head"]
    assert head.get_x() > max(bar.get_x() + bar.get_width() for bar in bars["MLP"])
    assert title(ax) == "Most sensitive: output head, 75% of the KL of all parts"
    without = plotting.sensitivity_bars(parts.iloc[:4])
    assert title(without).startswith("Most sensitive: MLP of layer 1, 40%")
    assert "head" not in [label.get_text() for label in without.get_xticklabels()]


def test_a_part_of_another_kind_is_refused(parts: pd.DataFrame) -> None:
    with pytest.raises(ResultError, match=r"'router'.*attention, mlp, embedding, head"):
        plotting.sensitivity_bars(parts.assign(part="router"))


def test_the_line_of_a_scheme_is_the_mean_of_each_block(errors: pd.DataFrame) -> None:
    ax = plotting.layer_errors(errors)
    lines = {str(line.get_label()): line.get_ydata() for line in ax.lines}
    assert lines["int4-awq"] == pytest.approx([9, 11])
    assert lines["int4-gptq"] == pytest.approx([5, 5])
    assert title(ax).startswith("int4-gptq has the smallest error: 5 %")


def test_scores_below_the_reference_are_filled(scores: pd.DataFrame) -> None:
    ax = plotting.task_scores(scores, "none")
    faces = [to_hex(p.get_markerfacecolor()) for p in points(ax)]
    assert [face == "#ffffff" for face in faces] == [True, True, False, True, True, True]
    assert [p.get_xdata()[0] for p in points(ax)] == pytest.approx([90, 85, 50, 90, 85, 90])
    assert title(ax) == "Below the reference's interval, of 2 schemes: code 1, passkey 0"
    bands = [c.get_paths()[0].get_extents() for c in ax.collections if len(c.get_paths()) == 1]
    assert any((b.x0, b.x1) == pytest.approx((80, 95)) for b in bands)
    with pytest.raises(ResultError, match="'float'"):
        plotting.task_scores(scores, "float")


def test_calibration_is_drawn_in_order_with_what_needs_none(schemes: pd.DataFrame) -> None:
    ax = plotting.calibration_size(schemes.iloc[::-1], baselines={"docs": 1.2})
    docs, code = points(ax)
    assert list(docs.get_xdata()) == [256, 1024, 4096, 16384]
    assert list(docs.get_ydata()) == [1.0, 0.999, 1.004, 1.5]
    assert list(code.get_ydata()) == [1.0, 1.001, 1.006, 1.4]
    assert any(list(line.get_ydata()) == [1.2, 1.2] for line in ax.lines)
    assert title(ax).endswith("docs 1.000 to 1.500, code 1.000 to 1.400")


def test_both_kinds_of_text_stand_in_one_row(schemes: pd.DataFrame) -> None:
    ax = plotting.text_ratios(schemes, limit=1.02)
    docs, code = points(ax)
    assert list(docs.get_xdata()) == schemes[RATIO].tolist()
    assert (
        np.round(docs.get_ydata()).tolist() == np.round(code.get_ydata()).tolist() == [0, 1, 2, 3]
    )
    assert title(ax) == (
        "Lowest on docs: q4_1 (2 not told from it), lowest on code: none (2 not told from it)"
    )
    assert {"float", "floor"} <= set(texts(ax))
    assert ax.get_xscale() == "linear"
    far = schemes.assign(**{RATIO: [1.0, 1.0, 1.0, 30.0]})
    assert plotting.text_ratios(far).get_xscale() == "log"


@pytest.mark.parametrize(
    ("call", "field"),
    [
        (lambda t: plotting.quality_bits(t.drop(columns="extra.bits")), "extra.bits"),
        (lambda t: plotting.quality_bits(t.drop(columns="extra.is_stored")), "extra.is_stored"),
        (plotting.batch_gain, "num_tokens"),
        (plotting.sensitivity_bars, "kl"),
        (plotting.layer_errors, "block"),
        (lambda t: plotting.task_scores(t, "none"), "score"),
        (lambda t: plotting.text_ratios(t.drop(columns=RATIO)), RATIO),
    ],
)
def test_tables_without_the_numbers_are_refused(
    schemes: pd.DataFrame, call: Any, field: str
) -> None:
    with pytest.raises(ResultError) as caught:
        call(schemes)
    assert caught.value.field == field
