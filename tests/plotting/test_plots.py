"""That each plot shows the numbers of its table."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
import pytest
from matplotlib.container import BarContainer, ErrorbarContainer
from matplotlib.text import Annotation
from matplotlib.transforms import Bbox

from infopt import plotting
from infopt.errors import ResultError

Draw = Callable[..., Any]
TTFT, RATE = "latency.ttft_s.p50", "throughput.output_tokens_per_s"


def title(ax: Any) -> str:
    return ax.get_figure().get_suptitle().replace("\n", " ")


def error_bars(ax: Any) -> list[ErrorbarContainer]:
    return [c for c in ax.containers if isinstance(c, ErrorbarContainer)]


def point_labels(ax: Any) -> list[Annotation]:
    return [a for a in ax.texts if isinstance(a, Annotation) and "=" in a.get_text()]


def test_pareto_draws_displayed_units_and_leaves_failed_runs_out(runs: pd.DataFrame) -> None:
    ax = plotting.pareto(runs, TTFT, RATE)
    drawn = np.concatenate([c.lines[0].get_xdata() for c in error_bars(ax)])
    expected = runs[TTFT].dropna().to_numpy() * 1e3
    assert sorted(drawn) == pytest.approx(sorted(expected))
    assert "1 run without these numbers left out" in ax.get_xlabel()


def test_pareto_labels_the_front_without_overlaps(runs: pd.DataFrame) -> None:
    ax = plotting.pareto(runs, TTFT, RATE)
    figure: Any = ax.get_figure()
    figure.draw_without_rendering()
    labels = point_labels(ax)
    boxes = [super(Annotation, label).get_window_extent() for label in labels]
    for i, box in enumerate(boxes):
        for other in boxes[:i]:
            assert Bbox.intersection(box, other) is None
    names = {label.get_text() for label in labels}
    assert {f"scheduling=continuous-max_num_seqs={n}" for n in (1, 2, 4, 8, 16, 32)} <= names


@pytest.mark.parametrize(
    ("x", "y", "expected"),
    [
        ("latency.ttft_s.p50", "throughput.output_tokens_per_s", ["a", "b"]),
        ("latency.ttft_s.p50", "memory.engine_bytes", ["a", "c"]),
        ("throughput.output_tokens_per_s", "slo.goodput_share", ["b", "d"]),
    ],
)
def test_pareto_knows_directions(x: str, y: str, expected: list[str]) -> None:
    table = pd.DataFrame(
        {
            "slug": list("abcd"),
            "run": list("abcd"),
            "stage": "s",
            "status": "ok",
            "latency.ttft_s.p50": [1, 3, 2, 4],
            "throughput.output_tokens_per_s": [10, 30, 5, 20],
            "memory.engine_bytes": [5, 6, 1, 7],
            "slo.goodput_share": [0.1, 0.2, 0.1, 0.9],
        }
    )
    found = title(plotting.pareto(table, x, y))
    assert found == f"2 of 4 runs are not beaten: {', '.join(expected)}"


def test_pareto_uses_the_marks_of_the_selection(runs: pd.DataFrame) -> None:
    runs = runs.iloc[:3].assign(pareto=[False, False, True], feasible=[True, False, True])
    ax = plotting.pareto(runs, TTFT, RATE, chosen="batching/continuous-4", x_limit=0.1)
    assert title(ax).startswith("1 of 3 runs are not beaten")
    faces = [c.lines[0].get_markerfacecolor() for c in error_bars(ax)]
    assert faces.count("white") == 1 and len(faces) == 2
    assert "hollow: misses a limit" in ax.get_xlabel()
    assert len(ax.collections) >= 1
    assert any(a.get_text() == "limit 100 ms" for a in ax.texts)


def test_forest_is_hollow_where_undecided(ratios: pd.DataFrame) -> None:
    ax = plotting.ratio_forest(ratios)
    bars = error_bars(ax)
    faces = [bar.lines[0].get_markerfacecolor() for bar in bars]
    assert [face == "white" for face in faces] == [False, False, True, True]
    assert [float(bar.lines[0].get_xdata()[0]) for bar in bars] == [1.82, 0.7, 1.01, 0.99]
    segment = bars[0].lines[2][0].get_segments()[0]
    assert sorted(segment[:, 0]) == pytest.approx([1.7, 1.95])
    assert any(list(line.get_xdata()) == [1.0, 1.0] for line in ax.lines)
    assert "hollow: undecided" in ax.get_xlabel() and "better →" in ax.get_xlabel()
    assert title(ax) == "Output throughput: 1 better, 1 worse, 2 undecided (against static)"
    assert "← better" in plotting.ratio_forest(ratios, "ttft_s").get_xlabel()


def test_forest_uses_a_logarithmic_axis_for_large_ratios(ratios: pd.DataFrame) -> None:
    assert plotting.ratio_forest(ratios).get_xscale() == "linear"
    for end in ("median", "low", "high"):
        ratios[f"comparison.output_tokens_per_s.{end}"] **= 4
    ax = plotting.ratio_forest(ratios)
    assert ax.get_xscale() == "log"
    assert "1x" in [label.get_text() for label in ax.get_xticklabels()]
    assert 4 <= len(ax.get_xticklabels()) <= 9


@pytest.mark.parametrize(("low", "high"), [(0.048, 0.05), (0.7, 1.6), (0.9, 5.5), (0.99, 900.0)])
def test_ticks_of_ratios_are_spread_over_the_axis(
    ratios: pd.DataFrame, low: float, high: float
) -> None:
    base = "comparison.output_tokens_per_s"
    columns = {f"{base}.low": low, f"{base}.median": low, f"{base}.high": high}
    ax = plotting.ratio_forest(ratios.assign(**columns))
    low, high = ax.get_xlim()
    places = np.log(ax.get_xticks())
    places = places[(places >= np.log(low)) & (places <= np.log(high))]
    assert len(places) >= 3
    assert np.diff(places).max() < 0.5 * np.log(high / low)


def test_titles_are_wrapped_into_lines_of_like_length(runs: pd.DataFrame) -> None:
    words = " ".join(["a finding that is a little longer than what fits into one line"] * 2)
    lines = plotting.pareto(runs, TTFT, RATE, title=words).get_figure().get_suptitle().split("\n")
    assert " ".join(lines) == words
    assert len(lines) == 2 and min(map(len, lines)) > 0.7 * max(map(len, lines))


def test_points_that_have_all_their_names_need_no_legend(runs: pd.DataFrame) -> None:
    few = runs[runs["config.max_num_seqs"] == 8]
    ax = plotting.pareto(few, TTFT, RATE, color="config.scheduling", label="config.scheduling")
    assert ax.get_legend() is None
    assert {"continuous", "static", "static_padded"} <= {text.get_text() for text in ax.texts}
    assert plotting.pareto(few, TTFT, RATE, color="config.scheduling").get_legend() is not None


def test_steps_of_a_kind_share_a_colour_under_the_roof(runs: pd.DataFrame) -> None:
    static = runs[runs["config.scheduling"] != "static_padded"].iloc[:-1]
    ax = plotting.roofline(static, 85e9, 974e9, color="config.scheduling")
    points = [line for line in ax.lines if line.get_linestyle() == "None"]
    assert len(points) == 12 and len({line.get_color() for line in points}) == 2
    assert ax.get_legend_handles_labels()[1] == ["continuous", "static"]
    assert sum("%)" in text.get_text() for text in ax.texts) == 12


def test_percentiles_that_do_not_exist_are_left_out_and_said(runs: pd.DataFrame) -> None:
    ax = plotting.latency_percentiles(runs.iloc[:4])
    offsets = np.concatenate([np.asarray(c.get_offsets()) for c in ax.collections if len(
        np.asarray(c.get_offsets())) == 4])  # fmt: skip
    assert np.isfinite(offsets).sum() >= 4 * 2 * 2
    assert "p99 missing where the sample is too small" in ax.get_xlabel()
    few = plotting.latency_percentiles(runs.iloc[:3]).get_legend()
    assert [text.get_text() for text in few.get_texts()] == ["p50", "p90"]
    all_known = plotting.latency_percentiles(runs.iloc[4:6])
    assert title(all_known).startswith(
        "scheduling=continuous-max_num_seqs=16 has the lowest TTFT p99"
    )
    assert title(ax).startswith("scheduling=continuous-max_num_seqs=1 has the lowest TTFT p90")


def test_ecdf_counts_requests_without_a_value(samples: pd.DataFrame) -> None:
    """Dropping the slowest requests must not raise a run's curve to 100 %."""
    ax = plotting.ecdf(samples, limit=0.2)
    heights = {line.get_label(): max(line.get_ydata()) for line in ax.lines}
    assert heights["continuous (n=80)"] == 100
    assert heights["static (n=80, 10 without a value)"] == pytest.approx(87.5)
    static = samples[samples["run"] == "static"]["value"]
    assert f"static {np.mean(static <= 0.2) * 100:.0f} %" in title(ax)


def test_throughput_lines_follow_their_group(runs: pd.DataFrame) -> None:
    ax = plotting.throughput_vs_batch(runs.sample(frac=1, random_state=0))
    for bars in error_bars(ax):
        assert list(bars.lines[0].get_xdata()) == [1, 2, 4, 8, 16, 32]
    assert [t.get_text() for t in ax.get_xticklabels()] == ["1", "2", "4", "8", "16", "32"]
    factor = 32 / (1 + 32 / 12) * (1 + 1 / 12)
    assert f"continuous: output throughput grows {factor:.2g}x from 1" in title(ax)


def test_goodput_names_the_highest_load_that_keeps_the_objective(runs: pd.DataFrame) -> None:
    ax = plotting.goodput_curve(runs, group="config.scheduling")
    assert title(ax) == "continuous keeps the objective for 90% of requests up to 2 requests/s"
    none = runs.assign(**{"slo.goodput_requests_per_s": 0.0})
    assert title(plotting.goodput_curve(none)).startswith("No run keeps")


def test_goodput_is_told_from_the_baselines(drawn: Draw) -> None:
    ax = drawn("goodput_gains")
    assert [bar.get_width() for bar in ax.patches] == [22.0, 5.5, 0.0]
    assert [text.get_text() for text in ax.texts] == [
        *("22", "5.5    the choice: 4.00x [3.20, 4.90]", "0")
    ]
    assert title(ax) == "22 requests/s keep the objective, 4.0x static"


def test_load_curve_has_the_bracket_hollow_points_and_the_limit(load: pd.DataFrame) -> None:
    ax = plotting.load_curve(load, bracket=(4.0, 5.0))
    assert title(ax) == "The server takes 4 requests/s; goodput there is 3.8 requests/s"
    kept, not_kept = (bars.lines[0] for bars in error_bars(ax))
    assert (list(kept.get_xdata()), list(not_kept.get_xdata())) == ([1, 2, 4], [5, 8])
    assert not_kept.get_markerfacecolor() == "white" != kept.get_markerfacecolor()
    (between,) = ax.patches
    assert between.get_extents().transformed(ax.transData.inverted()).x0 == pytest.approx(4)
    late = plotting.load_curve(load, "latency.ttft_s.p90", bracket=(4.0, None), limit=1.0)
    assert late.get_yscale() == "log"
    assert any(line.get_ydata()[0] == 1000 for line in late.lines)  # milliseconds
    assert title(late) == "The server takes at least 4 requests/s; TTFT p90 there is 400 ms"
    assert "too much" in title(plotting.load_curve(load, bracket=(None, 1.0)))


def test_bars_have_values_intervals_and_the_reference_line(runs: pd.DataFrame) -> None:
    names = {"label": "config.scheduling", "reference": "static"}
    ax = plotting.bars_with_interval(runs[runs["config.max_num_seqs"] == 8], RATE, **names)
    (bars,) = [c for c in ax.containers if isinstance(c, BarContainer)]
    assert [round(bar.get_width()) for bar in bars] == [456, 336, 240]
    assert any(line.get_xdata()[0] == pytest.approx(336) for line in ax.lines)
    assert title(ax) == "continuous has the highest output throughput: 456 tokens/s"
    lowest = plotting.bars_with_interval(runs, TTFT)
    assert "has the lowest TTFT p50" in title(lowest)


def test_roofline_points_lie_where_the_counts_say(runs: pd.DataFrame) -> None:
    ax = plotting.roofline(runs[runs["config.scheduling"] == "static"], 85e9, 974e9)
    points = [line for line in ax.lines if line.get_linestyle() == "None"]
    assert [float(p.get_xdata()[0]) for p in points] == [1, 2, 4, 8, 16, 32]
    assert points[0].get_ydata()[0] == pytest.approx(2.7e8 / 0.0062 / 1e9)
    share = 2.7e8 / 0.0062 / 85e9
    assert f"({share:.0%})" in str(points[0].get_label())
    for wrong in ({"bandwidth": 0.0, "flops": 1.0}, {"bandwidth": 1.0, "flops": float("nan")}):
        with pytest.raises(ResultError, match="must be positive"):
            plotting.roofline(runs, **wrong)


def test_ops_lie_under_the_roof_by_their_counts(ops: pd.DataFrame) -> None:
    ax = plotting.op_roofline(ops, 1e11, 1e12)
    points = [line for line in ax.lines if line.get_linestyle() == "None" and len(line.get_xdata())]
    found = [(line.get_xdata()[0], line.get_ydata()[0]) for line in points]
    counted = ops.dropna()
    achieved = counted["flops"] / counted["measured_s"] / 1e9
    expected = zip(counted["flops"] / counted["bytes"], achieved, strict=True)
    assert found == [pytest.approx(point) for point in expected]
    assert len({str(line.get_marker()) for line in points}) == 2
    assert len({line.get_color() for line in points}) == 2
    labels = ax.get_legend_handles_labels()[1]
    assert labels == ["gate_up", "norm", "decode of 1", "prefill of 128"]
    assert title(ax).startswith("Furthest beyond its limit: gate_up, 0.64 ms of a prefill")
    for wrong in ({"bandwidth": 0, "flops": 1}, {"bandwidth": 1, "flops": float("nan")}):
        with pytest.raises(ResultError, match="must be positive"):
            plotting.op_roofline(ops, **wrong)


def test_bars_of_ops_fill_the_step_and_show_what_limits_explain(ops: pd.DataFrame) -> None:
    ax = plotting.op_shares(ops)
    bars = [bar for bar in ax.patches if bar.get_width() > 0]
    whole, least = (ops.groupby("step", sort=False)[c].sum() for c in ("measured_s", "predicted_s"))
    expected = (100 * least / whole).tolist()
    for row in (0, 1):
        own = [bar for bar in bars if round(bar.get_y() + bar.get_height() / 2) == row]
        assert sum(b.get_width() for b in own if b.get_alpha() is not None) == pytest.approx(100)
        full = sum(b.get_width() for b in own if b.get_alpha() is None)
        assert full == pytest.approx(expected[row])
    low, high = sorted(expected)
    assert title(ax) == f"The limits explain {low:.0f}% to {high:.0f}% of a step's time"


def test_steps_are_split_by_kind_and_part(steps: pd.DataFrame) -> None:
    ax = plotting.step_breakdown(steps)
    assert [t.get_text() for t in ax.get_yticklabels()] == [
        "prefill (n=30)", "mixed (n=30)", "decode (n=30)",
    ]  # fmt: skip
    widths = {c.get_label(): c[0].get_width() for c in ax.containers}
    assert widths == pytest.approx({"schedule": 1, "forward": 7, "sample": 1, "other": 1})
    assert title(ax) == "The forward pass takes 70% of all step time"
    grouped = plotting.step_breakdown(steps.assign(arm=["x", "y"] * 45), group="arm")
    assert [t.get_text() for t in grouped.get_yticklabels()] == ["x (n=45)", "y (n=45)"]


def test_fragmentation_is_empty_slots_over_all_slots(steps: pd.DataFrame) -> None:
    ax = plotting.fragmentation(steps, 16)
    (line,) = [line for line in ax.lines if len(np.atleast_1d(line.get_xdata())) == 90]
    assert line.get_ydata() == pytest.approx(np.full(90, 3.0))
    assert title(ax) == "Pages of 16 tokens waste 3.0% of their slots"
    with pytest.raises(ResultError, match="no step used a page"):
        plotting.fragmentation(steps.assign(num_pages_used=0), 16)


def test_tables_show_units_intervals_and_gaps(runs: pd.DataFrame) -> None:
    table = plotting.results_table(
        runs.iloc[[0, 18]], [RATE, TTFT, "config.max_num_seqs", "config.scheduling"]
    )
    assert list(table.columns) == [
        "Output throughput (tokens/s)",
        "TTFT p50 (ms)",
        "Sequences at once (max_num_seqs)",
        "config.scheduling",
    ]
    first, second = table.iloc[0].tolist(), table.iloc[1].tolist()
    assert first == ["88 [83, 91]", "20.2", "1", "continuous"]
    assert second == ["", "", "", ""]
    assert table.index.tolist() == ["scheduling=continuous-max_num_seqs=1", "f"]


@pytest.mark.parametrize(
    ("call", "field"),
    [
        (lambda runs: plotting.pareto(runs, "latency.ttft.p50", RATE), "latency.ttft.p50"),
        (lambda runs: plotting.bars_with_interval(runs.iloc[-1:], RATE), RATE),
        (plotting.ratio_forest, "comparison.output_tokens_per_s.verdict"),
        (plotting.step_breakdown, "duration_s"),
        (plotting.op_shares, "step"),
        (lambda runs: plotting.ecdf(runs.iloc[:0].assign(value=1.0)), "value"),
        (lambda runs: plotting.results_table(runs, ["x.y"]), "x.y"),
    ],
)
def test_tables_without_the_numbers_are_refused_by_name(
    runs: pd.DataFrame, call: Callable[[pd.DataFrame], Any], field: str
) -> None:
    with pytest.raises(ResultError) as caught:
        call(runs)
    assert caught.value.field == field
