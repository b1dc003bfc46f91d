"""Findings of the notebook on speculation: cells as a table, and sentences computed from it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from infopt.bench.speculation import FORMULA_TOLERANCE
from infopt.bench.stats import MIN_PAIRS_FOR_VERDICT, proportion_interval
from infopt.experiments.findings.data import StageResults, stage_results
from infopt.plotting.data import floats, is_missing
from infopt.results.html import format_ratio
from infopt.select.rows import Row, rows_of

if TYPE_CHECKING:
    import pandas as pd

STAGE = "speculative"
SPECULATION, METHODS, FLOAT_TARGET = "speculation", "methods", "float_target"
TINY_PAIR = "tiny_pair"
OFF, AUTO, HEAD = "off", "auto", "draft_head"
CANDIDATE = "extra.candidate"


@dataclass(frozen=True)
class SpeculativeStory:
    """The stage's results.

    Attributes:
        data: Results of the stage.
    """

    data: StageResults

    @property
    def slices(self) -> list[str]:
        """Names of the slices that this run measured."""
        return list(dict.fromkeys(str(name) for name in self.data.table["extra.slice"]))

    @cached_property
    def cells(self) -> pd.DataFrame:
        """Every cell of every candidate, looping answers apart (see ``looping``).

        Columns: those of the samples ``cells.*``, and ``slice``, ``candidate``, ``workload``,
        ``traffic`` (workload and temperature), ``verdict``.
        """
        return self._all.loc[self._all["is_degenerate"] == 0].reset_index(drop=True)

    @cached_property
    def looping(self) -> pd.DataFrame:
        """The cells of looping answers."""
        return self._all.loc[self._all["is_degenerate"] == 1].reset_index(drop=True)

    @cached_property
    def _all(self) -> pd.DataFrame:
        import pandas as pd

        parts = [self._cells_of(name, row) for name, row in self._candidates()]
        return pd.concat(parts, ignore_index=True)

    @cached_property
    def positions(self) -> pd.DataFrame:
        """Acceptance by position: ``candidate``, ``traffic``, ``batch``, ``position``, ``rate``.

        ``low`` and ``high`` are the 95 % interval of the rate.
        """
        import pandas as pd

        keys = ("slice", "candidate", "traffic", "batch", "is_degenerate")
        rows = []
        for name, row in self._candidates():
            cells = self._cells_of(name, row)
            curve = self._curve(name, str(row[CANDIDATE]), "positions.")
            for point in curve.to_dict("records"):
                cell = cells.iloc[int(point["cell"])]
                rows.append({**{key: cell[key] for key in keys}, **point})
        columns = (*keys, "cell", "position", "proposed", "accepted")
        table = pd.DataFrame(rows, columns=pd.Index(columns))
        table = table.loc[(table["is_degenerate"] == 0) & (table["proposed"] > 0)]
        pairs = zip(floats(table, "accepted"), floats(table, "proposed"), strict=True)
        shares = [proportion_interval(int(kept), int(made)) for kept, made in pairs]
        return table.assign(
            rate=[share.estimate for share in shares],
            low=[share.low for share in shares],
            high=[share.high for share in shares],
        ).reset_index(drop=True)

    def of(self, candidate: str, slice_name: str = METHODS) -> pd.DataFrame:
        """Return the cells of one candidate."""
        cells = self.cells
        wanted = (cells["candidate"] == candidate) & (cells["slice"] == slice_name)
        return cells.loc[wanted].reset_index(drop=True)

    @property
    def methods(self) -> list[str]:
        """Candidates with cells, in the order of the configuration."""
        cells = self.cells
        return list(dict.fromkeys(cells.loc[cells["slice"] == METHODS, "candidate"]))

    @property
    def workloads(self) -> list[str]:
        """Workloads of the cells, in the order of the configuration."""
        cells = self.cells
        return list(dict.fromkeys(cells.loc[cells["slice"] == METHODS, "workload"]))

    @property
    def chosen(self) -> Mapping[str, Any]:
        """The pipeline's choice on its own traffic."""
        return self.data.chosen[SPECULATION]

    def row(self, candidate: str, slice_name: str = SPECULATION) -> Row:
        """Return one candidate of a slice."""
        return self.data.row(slice_name, candidate)

    def _candidates(self) -> list[tuple[str, Row]]:
        """Return slice and row of every candidate that measured cells."""
        return [
            (name, row)
            for name in self.slices
            for row in rows_of(self.data.rows(name))
            if not is_missing(row.get("extra.num_cells"))
        ]

    def _cells_of(self, name: str, row: Row) -> pd.DataFrame:
        table = self._curve(name, str(row[CANDIDATE]), "cells.")
        names = str(row["extra.cell_workloads"]).split(" ")
        workloads = [names[int(index)] for index in table["workload"]]
        warm = [f", temperature {t:g}" if t else "" for t in table["temperature"]]
        return table.assign(
            slice=name,
            candidate=str(row[CANDIDATE]),
            workload=workloads,
            traffic=[workload + text for workload, text in zip(workloads, warm, strict=True)],
            verdict=[_verdict(cell) for cell in table.to_dict("records")],
        )

    def _curve(self, name: str, candidate: str, prefix: str) -> pd.DataFrame:
        return replace(self.data, table=self.data.rows(name)).curve(candidate, prefix)


def speculative_story(results_dir: str | Path, model: str | None = None) -> SpeculativeStory:
    """Return the results of the pipeline if there are any, else of a miniature.

    Args:
        results_dir: The pipeline's folder.
        model: What the miniature runs; None for the default model.
    """
    return SpeculativeStory(stage_results(STAGE, results_dir, model))


def _verdict(cell: Mapping[Any, Any]) -> str:
    if cell["num_pairs"] < MIN_PAIRS_FOR_VERDICT or cell["low"] <= 1 <= cell["high"]:
        return "undecided"
    return "better" if cell["low"] > 1 else "worse"


def gain_sentence(story: SpeculativeStory, workload: str) -> str:
    """Return what the best method gains on a workload, and where that fades."""
    cells = story.cells
    own = cells.loc[
        (cells["workload"] == workload) & (cells["slice"] == METHODS) & (cells["temperature"] == 0)
    ]
    if own.empty:
        return f"`{workload}` was not measured at temperature 0."
    smallest = own.loc[own["batch"] == own["batch"].min()]
    best = smallest.iloc[int(np.argmax(floats(smallest, "ratio")))]
    line = own.loc[own["candidate"] == best["candidate"]].sort_values(by=["batch"])
    text = f"`{workload}`: best is `{best['candidate']}` with {ratio_text(best)}"
    text += f" at {sequences(best['batch'])}"
    if len(line) > 1:
        last = line.iloc[-1]
        text += f", and {ratio_text(last)} at {sequences(last['batch'])}"
    return text + "."


def gain_sentences(story: SpeculativeStory) -> str:
    """Return the sentence of each workload, as a list in Markdown."""
    return "\n".join(f"- {gain_sentence(story, workload)}" for workload in story.workloads)


def fade_sentence(story: SpeculativeStory) -> str:
    """Return the largest batch at which each always-on method still gained, by workload."""
    parts = []
    for method in [m for m in story.methods if m != AUTO]:
        cells = story.of(method)
        for workload in story.workloads:
            own = cells.loc[(cells["workload"] == workload) & (cells["temperature"] == 0)]
            if len(own) < 2:
                continue
            gains = own.loc[own["verdict"] == "better", "batch"]
            until = "gains at no size for certain"
            if len(gains):
                until = f"gains {'at' if gains.max() == 1 else 'up to'} {sequences(gains.max())}"
            losses = own.loc[own["verdict"] == "worse", "batch"]
            lost = f" and loses from {losses.min():.0f} on" if len(losses) else ""
            parts.append(f"`{method}` on `{workload}` {until}{lost}")
    if not parts:
        return "Only one batch was measured, so nothing can fade."
    return "\n".join(f"- {part}." for part in parts)


def formula_sentence(story: SpeculativeStory) -> str:
    """Return how far measured gains lie from the formula's."""
    cells = story.cells
    error = np.abs(floats(cells, "ratio") / floats(cells, "predicted") - 1)
    near = int((error <= FORMULA_TOLERANCE).sum())
    worst = cells.iloc[int(np.argmax(error))]
    return (
        f"{near} of {len(cells)} cells lie within {FORMULA_TOLERANCE:.0%} of the formula at their "
        f"measured acceptance and costs (median distance {np.median(error):.1%}); farthest is "
        f"`{worst['candidate']}` on {worst['traffic']} at {sequences(worst['batch'])}: "
        f"{worst['ratio']:.2f}x measured, {worst['predicted']:.2f}x by formula."
    )


def auto_sentence(story: SpeculativeStory) -> str:
    """Return whether ``auto`` lost anywhere, and how close it came to the best method."""
    if AUTO not in story.methods:
        return "`auto` was not measured."
    auto = story.of(AUTO)
    lost = auto.loc[auto["verdict"] == "worse"]
    text = f"`auto` lost in {len(lost)} of {len(auto)} cells"
    if len(lost):
        names = ", ".join(
            f"{c['traffic']} at {c['batch']:.0f} ({ratio_text(c)})" for c in rows_of(lost)
        )
        text += f" ({names})"
    others = [story.of(m) for m in story.methods if m != AUTO]
    if not others:
        return text + "."
    shares = [
        cell["ratio"] / max(1.0, *(_ratio_at(other, cell) for other in others))
        for cell in rows_of(auto)
    ]
    return (
        f"{text}; it reached {np.median(shares):.0%} (median) of the better of off and the best "
        f"method that always guesses, {min(shares):.0%} at worst."
    )


def _ratio_at(cells: pd.DataFrame, cell: Row) -> float:
    keys = ("traffic", "batch")
    same = cells.loc[np.all([cells[key] == cell[key] for key in keys], axis=0)]
    return float(same["ratio"].iloc[0]) if len(same) else 0.0


def ratio_text(cell: Mapping[str, Any]) -> str:
    """Return ``2.31x [2.2, 2.4]``, with the word where it is undecided."""
    open_word = ", undecided]" if cell["verdict"] == "undecided" else "]"
    shown = format_ratio(cell["ratio"], cell["low"], cell["high"])
    return shown.removesuffix("]") + open_word if shown.endswith("]") else shown


def sequences(batch: float) -> str:
    """Return ``one sequence`` or ``8 sequences``."""
    return "one sequence" if batch == 1 else f"{batch:.0f} sequences"
