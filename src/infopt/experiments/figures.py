"""Figures of the report: one per slice, and one of the finalists."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from infopt.errors import ResultError
from infopt.experiments.findings.tables import forest_axes
from infopt.experiments.select_spec import UNOPTIMIZED
from infopt.experiments.yaml_files import read_yaml
from infopt.plotting import (
    bars_with_interval,
    goodput_gains,
    load_curve,
    pareto,
    save,
    styled,
    written,
)
from infopt.plotting.data import floats, is_missing, shown
from infopt.results import read_table
from infopt.results.metrics import metric_of
from infopt.select import Recommendation, get_objective, read_recommendation

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes


def slice_rows(table: pd.DataFrame, name: str) -> pd.DataFrame:
    """Return the rows of one slice, in the order of the configuration's candidates.

    Raises:
        ResultError: The table has no such slice.
    """
    rows = table.loc[table["extra.slice"] == name]
    if rows.empty:
        names = ", ".join(sorted(set(table["extra.slice"])))
        raise ResultError(
            f"The table has no slice {name!r}.",
            field="slice",
            value=name,
            remedy=f"Slices: {names}.",
        )
    return rows.sort_values(by=["extra.position"]).reset_index(drop=True)


def draw_slice(table_path: str | Path, name: str, criterion: str, path: str | Path) -> None:
    """Draw the candidates of a slice against their reference, by what decides between them.

    Args:
        table_path: Table of the stage.
        name: Slice.
        criterion: Objective that decides.
        path: Picture to write; its ending is the format.
    """
    rows = slice_rows(read_table(table_path), name)
    _save(slice_axes(rows, criterion), path)


def slice_axes(rows: pd.DataFrame, criterion: str) -> Axes:
    """Return ratios with intervals, or the plain numbers where nothing was compared."""
    wanted = get_objective(criterion)
    if f"comparison.{wanted.paired}.median" in rows.columns and wanted.paired:
        return forest_axes(rows, wanted.paired)
    return bars_with_interval(rows, wanted.column, label="extra.candidate")


def draw_finalists(
    table_path: str | Path, recommendation_path: str | Path, path: str | Path
) -> None:
    """Draw the goodput of the choice beside the baselines', and the finalists on two axes.

    Args:
        table_path: Table of the stage `select`.
        recommendation_path: The recommendation.
        path: Picture to write.
    """
    found = read_recommendation(recommendation_path)
    _save(finalists_axes(slice_rows(read_table(table_path), "finalists"), found), path)


@styled
def finalists_axes(rows: pd.DataFrame, found: Recommendation) -> Axes:
    """Return the choice beside what one would serve otherwise above, and the finalists below."""
    gains = goodput_table(found)
    if gains is None:
        return front_axes(rows, found)
    upper, lower = _two_axes((7.5, 7.0), (1, 2))
    goodput_gains(gains, ax=upper)
    front_axes(rows, found, ax=lower)
    return upper


def goodput_table(found: Recommendation) -> pd.DataFrame | None:
    """Return the goodput of the choice and of each baseline; None where nothing was compared."""
    import pandas as pd

    if not found.baselines or found.run is None:
        return None
    name = short_name(found.run)
    chosen = found.baselines[0].chosen_goodput_per_s
    rows: list[dict[str, Any]] = [
        {"name": "the choice", "technique": name, "goodput_per_s": chosen}
    ]
    for gain in found.baselines:
        relaxed = f", limits x{gain.slo_factor:g}" if gain.slo_factor != 1 else ""
        label = f"{gain.name}, bfloat16{relaxed}"
        row = {"name": label, "technique": gain.name, "goodput_per_s": gain.goodput_per_s}
        rows.append(row | {"ratio": gain.ratio, "low": gain.low, "high": gain.high})
    columns = ["name", "technique", "goodput_per_s", "ratio", "low", "high"]
    return pd.DataFrame(rows, columns=pd.Index(columns))


def front_axes(
    rows: pd.DataFrame,
    found: Recommendation,
    x: str = "latency.ttft_s.p50",
    y: str = "throughput.output_tokens_per_s",
    ax: Axes | None = None,
) -> Axes:
    """Return the finalists on two axes with the front of these two; the choice is circled.

    Args:
        rows: The finalists. The unoptimized one is left out and named: it lies so far behind that
            the others could not be told apart beside it.
        found: What was chosen of them.
        x: Column of the horizontal axis.
        y: Column of the vertical axis.
        ax: Where to draw.
    """
    name = "extra.candidate"
    is_behind = (rows[name] == UNOPTIMIZED).to_numpy()
    is_known = np.isfinite(floats(rows, x)) & np.isfinite(floats(rows, y))
    rivals = rows.loc[~is_behind & is_known].reset_index(drop=True)
    axes = pareto(
        rivals,
        x,
        y,
        color=name,
        label=name,
        chosen=found.run,
        title=_choice(rivals, found, x, y),
        ax=ax,
    )
    behind = rows.loc[is_behind & is_known].to_dict("records")
    notes = [f"not shown: {row[name]}, at {_place(row, x, y)}" for row in behind]
    notes += [f"not measured: {other}" for other in rows.loc[~is_known, name]]
    axes.set_xlabel("\n".join([axes.get_xlabel(), *notes]))
    return axes


def _choice(rows: pd.DataFrame, found: Recommendation, x: str, y: str) -> str | None:
    """Say where the choice lies; None leaves the title to the plot."""
    own = [row for row in rows.to_dict("records") if row["run"] == found.run]
    if not own or is_missing(own[0].get(x)) or is_missing(own[0].get(y)):
        return None
    return f"Chosen: {short_name(str(found.run))}, at {_place(own[0], x, y)}"


def _place(row: Mapping[Any, Any], *columns: str) -> str:
    metrics = [metric_of(column) for column in columns]
    numbers = zip(columns, metrics, strict=True)
    return " and ".join(shown(float(row[c]) * m.display_scale, m) for c, m in numbers)


def short_name(run: str) -> str:
    """Return the candidate's name of a finalist's run, also within a sentence."""
    return run.replace("select/finalists.", "")


def draw_serving(
    table_path: str | Path, chosen_path: str | Path, limits: Mapping[str, float], path: str | Path
) -> None:
    """Draw goodput and time to first token of a server over the offered load.

    Args:
        table_path: Table of the stage `serving`.
        chosen_path: Its saturation point.
        limits: Limits of the objective in seconds, by name.
        path: Picture to write.
    """
    saturation = read_yaml(chosen_path)["saturation"]
    _save(serving_axes(read_table(table_path), saturation, limits), path)


def draw_power(
    table_path: str | Path, chosen_path: str | Path, name: str, path: str | Path
) -> None:
    """Draw a question of the stage `power`, or why this machine does not have it.

    Args:
        table_path: Table of the stage.
        chosen_path: What it chose.
        name: Slice.
        path: Picture to write.
    """
    entry = read_yaml(chosen_path)["slices"][name]
    if entry["status"] == "skipped":
        _save(written(entry["reason"], title=f"{name}: not measured on this machine"), path)
        return
    rows = slice_rows(read_table(table_path), name)
    if name == "cold_start":
        axes = bars_with_interval(rows, "extra.cold_start_s", label="extra.candidate")
    else:
        axes = slice_axes(rows, "throughput")
    _save(axes, path)


@styled
def serving_axes(
    table: pd.DataFrame, saturation: Mapping[str, Any], limits: Mapping[str, float]
) -> Axes:
    """Return goodput above and the 90th percentile of TTFT below, over the offered load."""
    upper, lower = _two_axes((7.5, 7.0), (1, 1), sharex=True)
    bracket = (saturation["last_good_per_s"], saturation["first_bad_per_s"])
    load_curve(table, bracket=bracket, ax=upper)
    column = ttft_column(table)
    load_curve(table, column, bracket=bracket, limit=limits.get("ttft_s"), ax=lower)
    return upper


def _two_axes(
    size: tuple[float, float], heights: tuple[int, int], *, sharex: bool = False
) -> tuple[Axes, Axes]:
    """Return two axes above each other on a figure that no window system knows of."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=size, layout="constrained")
    FigureCanvasAgg(figure)
    upper, lower = figure.subplots(2, 1, sharex=sharex, height_ratios=heights)
    return upper, lower


def ttft_column(table: pd.DataFrame) -> str:
    """Return the 90th percentile of TTFT, or the median where no run has ten requests."""
    high = "latency.ttft_s.p90"
    return high if np.isfinite(floats(table, high)).any() else "latency.ttft_s.p50"


def _save(axes: Axes, path: str | Path) -> None:
    path = Path(path)
    save(axes, path.with_suffix(""), formats=[path.suffix.removeprefix(".")])
