"""Pareto front and hypervolume over measured runs (dominance itself is computed by moocore)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from infopt.errors import ConfigError, DependencyError
from infopt.select.energy_order import rests_on_model
from infopt.select.objectives import Objective, get_objectives
from infopt.select.rows import Row, check_runs, number, rows_of, text

if TYPE_CHECKING:
    import pandas as pd


def pareto_front(
    table: pd.DataFrame,
    objectives: Sequence[str | Objective],
    *,
    include_modelled_energy: bool = False,
) -> pd.DataFrame:
    """Mark the runs that no other run beats in every objective.

    Args:
        table: Runs (with ``add_derived_columns`` where an objective needs them).
        objectives: Names of objectives; each knows its direction.
        include_modelled_energy: Let modelled (not measured) energy take part in dominance.

    Returns:
        The table with three more columns: ``pareto`` (bool), ``pareto_reason`` ("front",
        "dominated by <run>", or why the run could not be compared) and ``pareto_excluded`` (bool:
        it took no part). Equal runs are on the front together.
    """
    check_runs(table, "The Pareto front")
    wanted = get_objectives(objectives)
    rows = rows_of(table)
    reasons = [
        exclusion_reason(row, wanted, include_modelled_energy=include_modelled_energy)
        for row in rows
    ]
    usable = [i for i, reason in enumerate(reasons) if reason is None]
    points = _points([rows[i] for i in usable], wanted)
    front = {i for i, is_on in zip(usable, _nondominated(points, wanted), strict=True) if is_on}
    winners = {i: usable[w] for i, w in zip(usable, _dominators(points, wanted), strict=True)}
    marked = table.copy()
    marked["pareto"] = [i in front for i in range(len(rows))]
    marked["pareto_excluded"] = [reason is not None for reason in reasons]
    marked["pareto_reason"] = [
        reason or ("front" if i in front else f"dominated by {rows[winners[i]]['run']}")
        for i, reason in enumerate(reasons)
    ]
    return marked


def exclusion_reason(
    row: Row, objectives: Sequence[Objective], *, include_modelled_energy: bool = False
) -> str | None:
    """Return why a run cannot be compared, or None if it can."""
    if row["status"] != "ok":
        return f"the run failed: {text(row, 'failure.message') or 'no reason recorded'}"
    for objective in objectives:
        if number(row, objective.column) is None:
            return f"{objective.name} was not measured"
        if not include_modelled_energy and rests_on_model(row, objective.column):
            what = "rests on an energy that is" if objective.column.startswith("cost.") else "is"
            return f"{objective.name} {what} modelled, not measured"
    return None


@dataclass(frozen=True, slots=True)
class Hypervolume:
    """How much of the space between the bounds a set of runs dominates.

    Attributes:
        share: In [0, 1]; comparable between sets only where ``bounds`` are equal.
        bounds: ``(best, worst)`` by objective, in stored units.
        num_points: Runs that took part.
    """

    share: float
    bounds: dict[str, tuple[float, float]]
    num_points: int


def hypervolume(
    table: pd.DataFrame,
    objectives: Sequence[str | Objective],
    *,
    bounds: Mapping[str, tuple[float, float]] | None = None,
    include_modelled_energy: bool = False,
) -> Hypervolume:
    """Return the dominated share of the box between the best and the worst value.

    Each objective is scaled to its bounds, so that milliseconds and gigabytes weigh alike.

    Args:
        table: Runs.
        objectives: Names of objectives.
        bounds: ``(best, worst)`` by objective name; pass those of an earlier call to compare sets.
            Default: those of this table, so that its best possible point has share 1.
        include_modelled_energy: Let modelled energy take part.

    Raises:
        ConfigError: Bounds are missing, unknown or equal.
    """
    check_runs(table, "The hypervolume")
    wanted = get_objectives(objectives)
    usable = [
        row
        for row in rows_of(table)
        if exclusion_reason(row, wanted, include_modelled_energy=include_modelled_energy) is None
    ]
    points = _points(usable, wanted)
    box = _given_bounds(bounds, wanted) if bounds is not None else _own_bounds(points, wanted)
    best = np.array([box[o.name][0] for o in wanted])
    worst = np.array([box[o.name][1] for o in wanted])
    # 0 at the best value, 1 at the worst; beyond the bounds nothing is gained or lost.
    scaled = np.clip((points - best) / np.where(best == worst, 1.0, worst - best), 0.0, 1.0)
    share = float(_moocore().hypervolume(scaled, ref=np.ones(len(wanted)))) if len(scaled) else 0.0
    return Hypervolume(share, box, len(scaled))


def _points(rows: Sequence[Row], objectives: Sequence[Objective]) -> np.ndarray:
    """Return stored values, shape (runs, objectives)."""
    values = [[number(row, o.column) for o in objectives] for row in rows]
    return np.array(values, dtype=np.float64).reshape(len(rows), len(objectives))


def _nondominated(points: np.ndarray, objectives: Sequence[Objective]) -> np.ndarray:
    if not len(points):
        return np.zeros(0, dtype=bool)
    maximise = [o.is_maximised for o in objectives]
    return _moocore().is_nondominated(points, maximise=maximise, keep_weakly=True)


def _dominators(points: np.ndarray, objectives: Sequence[Objective]) -> list[int]:
    """Return for each dominated point one on the front that dominates it.

    The entries of points on the front mean nothing.
    """
    signs = np.array([-1.0 if o.is_maximised else 1.0 for o in objectives])
    costs = points * signs
    front = _nondominated(points, objectives)
    beats = [(costs <= c).all(axis=1) & (costs < c).any(axis=1) & front for c in costs]
    return [int(np.argmax(b)) for b in beats]


def _own_bounds(
    points: np.ndarray, objectives: Sequence[Objective]
) -> dict[str, tuple[float, float]]:
    if not len(points):
        return {o.name: (0.0, 0.0) for o in objectives}
    lows, highs = points.min(axis=0), points.max(axis=0)
    return {
        o.name: (float(high), float(low)) if o.is_maximised else (float(low), float(high))
        for o, low, high in zip(objectives, lows, highs, strict=True)
    }


def _given_bounds(
    bounds: Mapping[str, tuple[float, float]], objectives: Sequence[Objective]
) -> dict[str, tuple[float, float]]:
    names = {o.name for o in objectives}
    if set(bounds) != names:
        raise ConfigError(
            f"Bounds are given for {sorted(bounds)}, objectives are {sorted(names)}.",
            field="bounds",
            value=sorted(bounds),
            remedy="Give (best, worst) for each objective and no other.",
        )
    for objective in objectives:
        best, worst = bounds[objective.name]
        if best == worst or (best > worst) != objective.is_maximised:
            raise ConfigError(
                f"Bounds of {objective.name} must be (best, worst), got {(best, worst)}.",
                field="bounds",
                value=(best, worst),
                remedy=f"Best is the {'higher' if objective.is_maximised else 'lower'} value.",
            )
    return {name: (float(best), float(worst)) for name, (best, worst) in bounds.items()}


def _moocore() -> Any:
    try:
        import moocore
    except ImportError as error:
        raise DependencyError(
            "Pareto fronts need the package moocore, which is not installed.",
            field="moocore",
            remedy="pip install moocore",
        ) from error
    return moocore
