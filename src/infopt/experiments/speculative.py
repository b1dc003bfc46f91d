"""Stage `speculative`: where guessing tokens gains, where it does not, and what is handed on.

The slice `speculation` decides, on the traffic that the recommendation is for. The others explain:
each candidate serves *cells* (kinds of traffic by batch and temperature, see
`infopt.bench.speculation_cells`) in turn with the same engine without guesses. Guesses never change
an output, so quality is not measured again here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from infopt.bench.speculation import make_pools
from infopt.bench.speculation_cells import Cell, CellResult, Pool, measure_cell
from infopt.experiments.arms import Arm
from infopt.experiments.own_head import with_head
from infopt.experiments.slice_spec import SliceSpec
from infopt.experiments.slices import Probe, run_slice
from infopt.speculative.proposal import DECISIONS

CELLS = "cells"


def run(
    spec: SliceSpec, results_dir: str | Path, *, num_threads: int | None = None
) -> dict[str, Any]:
    """Run what is missing of the slice and return its manifest.

    Raises:
        ModelNotFoundError: A candidate asks for a draft head that was not trained.
    """
    spec = with_head(spec, results_dir)
    probes: list[Probe] = [speculation_probe]
    if spec.options.get(CELLS):
        probes.append(CellProbe(spec).probe)
    return run_slice(spec, results_dir, num_threads=num_threads, probes=probes)


def cells_of(spec: SliceSpec) -> list[Cell]:
    """Return the cells of a slice, in the order of the configuration."""
    return [
        Cell(entry["workload"], batch, temperature)
        for entry in spec.options[CELLS]
        for temperature in entry["temperatures"]
        for batch in entry["batches"]
    ]


class CellProbe:
    """Measures the cells of a slice; its requests are sorted once, by the first candidate's pair.

    Args:
        spec: The slice.
    """

    def __init__(self, spec: SliceSpec) -> None:
        """Sort nothing yet."""
        self._spec, self._cells = spec, cells_of(spec)
        self._workloads = {entry["workload"]: entry["options"] for entry in spec.options[CELLS]}
        self._pools: dict[tuple[str, float], Pool] = {}

    def probe(self, arm: Arm, reference: Arm | None) -> dict[str, Any]:
        """Return the measured cells as sample lists; the reference has none."""
        if reference is None:
            return {}
        if not self._pools:
            self._pools = make_pools(reference.llm, self._cells, self._workloads)
        results = [
            measure_cell(reference.llm, arm.llm, cell, requests, self._spec.repeats)
            for cell in [*self._cells, *self._looping_cells()]
            if (requests := self._pools[cell.workload, cell.temperature].take(cell))
        ]
        names = list(self._workloads)
        return {"extra": _extra(results, names, self._pools), "samples": _samples(results, names)}

    def _looping_cells(self) -> list[Cell]:
        """Return one cell of looping answers, which is shown apart, where there are any."""
        first = self._cells[0]
        return [Cell(first.workload, 1, first.temperature, is_degenerate=True)]


def speculation_probe(arm: Arm, reference: Arm | None) -> dict[str, Any]:
    """Return what became of guesses under the slice's load, as flat figures."""
    del reference
    stats = arm.llm.stats()["speculative"]
    if stats is None:
        return {"extra": {"speculative_method": "none"}}
    control = stats["controller"] or {}
    decisions = control.get("decisions", {})
    numbers = ("acceptance_rate", "alpha", "tokens_per_pass", "draft_cost", "verify_cost")
    extra = {f"spec_{name}": stats[name] for name in (*numbers, "formula_speedup", "draft_s")}
    extra |= {f"spec_{name}": control.get(f"{name}_speedup") for name in ("predicted", "measured")}
    extra |= {f"spec_steps_{name}": count for name, count in decisions.items()}
    return {"extra": {"speculative_method": stats["method"], **extra}}


def _extra(
    results: Sequence[CellResult], names: Sequence[str], pools: Mapping[tuple[str, float], Pool]
) -> dict[str, Any]:
    counted = [r for r in results if not r.cell.is_degenerate]
    verdicts = [r.ratio.verdict for r in counted]
    looping = sum(len(pool.looping) for pool in pools.values())
    answered = looping + sum(len(pool.sound) for pool in pools.values())
    return {
        "cell_workloads": " ".join(names),
        "num_cells": len(counted),
        **{f"cells_{name}": verdicts.count(name) for name in ("better", "worse", "undecided")},
        "looping_share": looping / answered,
    }


def _samples(results: Sequence[CellResult], names: Sequence[str]) -> dict[str, list[Any]]:
    """Return one entry per cell in each list, and acceptance by position of all of them."""
    rows = [_row(result, names) for result in results]
    samples: dict[str, list[Any]] = {
        f"cells.{name}": [row[name] for row in rows] for name in (rows[0] if rows else ())
    }
    positions = [
        (index, position, made, kept)
        for index, result in enumerate(results)
        for position, (made, kept) in enumerate(
            zip(result.proposed, result.accepted, strict=True), start=1
        )
    ]
    for place, name in enumerate(("cell", "position", "proposed", "accepted")):
        samples[f"positions.{name}"] = [row[place] for row in positions]
    return {name: values for name, values in samples.items() if values}


def _row(result: CellResult, names: Sequence[str]) -> dict[str, float | None]:
    cell, ratio = result.cell, result.ratio
    decided = {f"steps_{name}": result.decisions.get(name) for name in DECISIONS}
    return {
        "workload": names.index(cell.workload),
        "batch": cell.batch,
        "temperature": cell.temperature,
        "is_degenerate": int(cell.is_degenerate),
        "ratio": ratio.median,
        "low": ratio.low,
        "high": ratio.high,
        "num_pairs": ratio.num_pairs,
        "reference_tokens_per_s": result.reference_rate,
        "num_distinct": result.num_distinct,
        "looping_share": result.looping_share,
        "alpha": result.alpha,
        "mean_length": result.mean_length,
        "drafted_share": result.drafted_share,
        "tokens_per_pass": result.tokens_per_pass,
        "draft_cost": result.draft_cost,
        "verify_cost": result.verify_cost,
        "formula": result.formula,
        "predicted": result.predicted,
        **decided,
    }
