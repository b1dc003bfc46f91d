"""What holds for every plot."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import matplotlib as mpl
import pytest
from matplotlib.figure import Figure
from matplotlib.text import Text

from infopt import plotting
from infopt.errors import ResultError

Draw = Callable[..., Any]


def visible_texts(figure: Figure) -> list[Text]:
    """Return the texts that are drawn; matplotlib hides ticks outside the limits on its own."""
    figure.draw_without_rendering()
    texts = []
    for text in figure.findobj(Text):
        if not isinstance(text, Text) or not text.get_visible() or not text.get_text().strip():
            continue
        if not any(text in (t.label1, t.label2) for t in hidden_ticks(figure)):
            texts.append(text)
    return texts


def hidden_ticks(figure: Figure) -> list[Any]:
    ticks = []
    for ax in figure.axes:
        for axis in (ax.xaxis, ax.yaxis):
            low, high = sorted(axis.get_view_interval())
            for tick in [*axis.majorTicks, *axis.minorTicks]:
                if not low <= tick.get_loc() <= high:
                    ticks.append(tick)
    return ticks


def test_no_text_is_cut_off(drawn: Draw, plot_name: str) -> None:
    figure = drawn(plot_name).get_figure()
    texts = visible_texts(figure)
    assert len(texts) > 5
    for text in texts:
        box = text.get_window_extent()
        inside = (
            box.x0 >= -1
            and box.y0 >= -1
            and box.x1 <= figure.bbox.x1 + 1
            and box.y1 <= figure.bbox.y1 + 1
        )
        assert inside, f"{text.get_text()!r} leaves the picture: {box}"


def test_every_plot_has_a_finding_and_labelled_axes(
    draw: Draw, drawn: Draw, plot_name: str
) -> None:
    ax = drawn(plot_name)
    title = ax.get_figure().get_suptitle()
    assert len(title) > 10
    assert ax.get_xlabel() and (ax.get_ylabel() or ax.get_yticklabels())
    assert draw(plot_name, title="My own finding").get_figure().get_suptitle() == "My own finding"


def test_every_plot_has_units_and_an_arrow_to_the_better_side(drawn: Draw, plot_name: str) -> None:
    ax = drawn(plot_name)
    labels = ax.get_xlabel() + ax.get_ylabel()
    if plot_name == "decision_shares":  # to guess often is neither good nor bad
        assert "(%)" in labels and "better" not in labels
        return
    if plot_name in ("expert_loads", "distinct_experts"):  # equal is good, not more or less
        assert "(%)" in labels or "Distinct experts" in labels
        return
    if plot_name == "measure_ratios":  # each in its own direction, which its marker shows
        assert "up: better" in labels
        return
    assert "better" in labels and ("→" in labels or "←" in labels)
    assert "(" in labels or "ratio" in labels


def test_plots_go_where_they_are_told(draw: Draw, plot_name: str) -> None:
    figure = Figure(figsize=(8, 4), layout="constrained")
    left, right = figure.subplots(1, 2)
    assert draw(plot_name, ax=right) is right
    assert right.get_title(loc="left") and not left.get_title(loc="left")
    assert right.has_data() and not left.has_data()


def test_the_same_input_gives_the_same_bytes(
    draw: Draw, drawn: Draw, tmp_path: Path, plot_name: str
) -> None:
    """Files that change on every run make everything that depends on them run again."""
    formats = ["svg", "png"] if plot_name == "bars_with_interval" else ["svg"]
    first = plotting.save(drawn(plot_name), tmp_path / "a" / plot_name, formats=formats)
    second = plotting.save(draw(plot_name), tmp_path / "b" / plot_name, formats=formats)
    assert [p.suffix[1:] for p in first] == formats
    for one, other in zip(first, second, strict=True):
        assert one.read_bytes() == other.read_bytes()
    assert b"<dc:date>" not in first[0].read_bytes()


def test_axes_show_themselves_in_notebooks(drawn: Draw) -> None:
    data, size = drawn("bars_with_interval")._repr_png_()
    assert data.startswith(b"\x89PNG")
    assert 300 < size["width"] < 1200


def test_the_callers_settings_are_left_alone(draw: Draw, plot_name: str) -> None:
    before = dict(mpl.rcParams)
    draw(plot_name)
    assert dict(mpl.rcParams) == before


HEADLESS = """
import sys, threading
import pandas as pd
from infopt import plotting
table = pd.DataFrame({"slug": ["a", "b"], "status": "ok", "latency.ttft_s.p50": [1.0, 2.0]})
def work():
    plotting.save(plotting.bars_with_interval(table, "latency.ttft_s.p50"), sys.argv[1])
thread = threading.Thread(target=work)
thread.start()
thread.join()
assert "matplotlib.pyplot" not in sys.modules and "tkinter" not in sys.modules
"""


@pytest.mark.parametrize(("display", "backend"), [(None, None), (":99", "TkAgg")])
def test_plots_need_no_display(tmp_path: Path, display: str | None, backend: str | None) -> None:
    """A GUI backend off the main thread once crashed the worker that made the figures."""
    env = {k: v for k, v in os.environ.items() if k not in ("DISPLAY", "MPLBACKEND")}
    env |= {k: v for k, v in (("DISPLAY", display), ("MPLBACKEND", backend)) if v is not None}
    subprocess.run(
        [sys.executable, "-c", HEADLESS, str(tmp_path / "plot")], env=env, check=True, timeout=600
    )
    assert (tmp_path / "plot.png").stat().st_size > 1000
    assert (tmp_path / "plot.svg").stat().st_size > 1000


def test_plots_work_in_threads(draw: Draw, tmp_path: Path) -> None:
    thread = threading.Thread(target=lambda: plotting.save(draw("pareto"), tmp_path / "plot"))
    thread.start()
    thread.join(timeout=600)
    assert (tmp_path / "plot.png").is_file()


def test_other_formats_are_refused_before_anything_is_written(draw: Draw, tmp_path: Path) -> None:
    with pytest.raises(ResultError, match="gif"):
        plotting.save(draw("ecdf"), tmp_path / "plot", formats=["png", "gif"])
    assert not list(tmp_path.iterdir())
    figure = draw("ecdf").get_figure()
    assert plotting.save(figure, tmp_path / "plot", formats=["pdf"]) == [tmp_path / "plot.pdf"]


def test_every_exported_plot_is_covered() -> None:
    others = {"STYLE", "color_of", "colors_for", "marker_of", "results_table", "save", "styled"}
    others.add("written")  # words in place of a plot
    path = Path(__file__).with_name("conftest.py")
    for name in set(plotting.__all__) - others:
        assert f'"{name}": lambda' in path.read_text()
