"""Chooses again among measured finalists: other demands, the same measurements."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from infopt.bench.slo import SLO
from infopt.experiments.recommend import (
    choose_among,
    comparisons,
    finalists_manifests,
    finalists_table,
)
from infopt.results import RunRecord
from infopt.results.html import format_value
from infopt.select import Recommendation
from infopt.select.rejudge import judge_again


def choose_again(
    recommendation: Recommendation,
    results_dir: str | Path,
    *,
    objective: str | None = None,
    slo: str | Mapping[str, Any] | None = None,
    floor: str | Mapping[str, Any] | None = None,
) -> Recommendation:
    """Choose among the same finalists under other demands.

    Goodput, and what techniques are worth in it, is counted anew from the latencies of single
    requests that the records hold. The load stays the one that was measured: the highest that the
    composition sustained under the objective of the pipeline.

    Args:
        recommendation: The choice so far; ``objective`` and ``slo`` that are None stay as they are.
        results_dir: Folder with the finalists' records.
        objective: What to be best at.
        slo: Preset or limits.
        floor: Quality floor, None for none.

    Raises:
        ConfigError: Unknown names or limits.
        ResultError: The folder has no finalists.
    """
    wanted = slo if slo is not None else recommendation.slo_name or recommendation.slo
    change = None
    if wanted is not None:
        name = wanted if isinstance(wanted, str) else "custom"
        change = partial(_judged, slo=SLO.from_spec(wanted), name=name)
    table = finalists_table(finalists_manifests(results_dir), results_dir, change)
    found = choose_among(
        table, wanted, floor, recommendation.objective if objective is None else objective
    )
    notes = ("Chosen again from the finalists: this choice was not tried on fresh seeds.",)
    if slo is not None:
        notes += (_load_note(float(table["throughput.offered_requests_per_s"].iloc[0])),)
    return dataclasses.replace(found, notes=(*notes, *found.notes), **comparisons(table))


def _judged(record: RunRecord, *, slo: SLO, name: str) -> RunRecord:
    return judge_again(record, slo, name) if record.stage == "select" else record


def _load_note(rate: float) -> str:
    return (
        f"All finalists were loaded with {format_value(rate, 3)} requests/s, the highest rate that "
        "the composition sustained under the objective of the run; under this one it may differ."
    )
