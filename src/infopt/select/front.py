"""The trade-off of the finalists: Pareto front, hypervolume, and its knee.

The axes are those that most compared runs have; a run without one of them has no part in the front.
A derived energy is left out by default, because its order may be that of its constants.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from infopt.select.objectives import Objective, get_objectives
from infopt.select.pareto import exclusion_reason, hypervolume, pareto_front
from infopt.select.rows import Row, number, rows_of

if TYPE_CHECKING:
    import pandas as pd

AXES = ("kl_mean", "ttft_p50", "tpot_p50", "throughput", "j_per_request", "cost_per_request")


@dataclass(frozen=True, slots=True)
class Front:
    """Which runs cannot be beaten on one axis without losing on another.

    Attributes:
        axes: Objectives that were compared.
        left_out: Axes that were not, each with the reason.
        runs: Runs on the front, in the order of the table.
        dominated: The others that were compared, each with the run that dominates it.
        excluded: Runs that have no part, each with the reason: they lack one of the axes.
        knee: The run on the front nearest to the best of every axis, each scaled to the range of
            the front.
        hypervolume: Share of the space between the best and the worst values that the front
            dominates.
    """

    axes: tuple[str, ...]
    left_out: dict[str, str]
    runs: tuple[str, ...]
    dominated: dict[str, str]
    knee: str | None
    hypervolume: float
    excluded: dict[str, str] = field(default_factory=dict)


def front_of(
    table: pd.DataFrame,
    axes: Sequence[str | Objective] = AXES,
    *,
    include_modelled_energy: bool = False,
) -> Front:
    """Return the front of a table.

    Args:
        table: From ``filter_runs`` or ``add_derived_columns``.
        axes: Objectives; one that more than half of the runs lack is left out by name, and so is a
            run that lacks one of the others.
        include_modelled_energy: Let modelled energy take part.
    """
    rows = [row for row in rows_of(table) if row["status"] == "ok"]
    left_out: dict[str, str] = {}
    used: list[Objective] = []
    for axis in get_objectives(axes):
        found = [
            exclusion_reason(row, [axis], include_modelled_energy=include_modelled_energy)
            for row in rows
        ]
        reasons = [reason for reason in found if reason]
        if 2 * len(reasons) <= len(rows):
            used.append(axis)
        else:
            left_out[axis.name] = reasons[0]
    if not used or not rows:
        return Front((), left_out, (), {}, None, 0.0)
    marked = rows_of(pareto_front(table, used, include_modelled_energy=include_modelled_energy))
    front = [row for row in marked if row["pareto"]]
    volume = hypervolume(table, used, include_modelled_energy=include_modelled_energy)
    return Front(
        axes=tuple(axis.name for axis in used),
        left_out=left_out,
        runs=tuple(str(row["run"]) for row in front),
        dominated=_reasons(row for row in marked if not (row["pareto"] or row["pareto_excluded"])),
        knee=knee_of(front, used),
        hypervolume=volume.share,
        excluded=_reasons(row for row in marked if row["pareto_excluded"]),
    )


def _reasons(rows: Iterable[Row]) -> dict[str, str]:
    return {str(row["run"]): str(row["pareto_reason"]) for row in rows}


def knee_of(rows: Sequence[Row], axes: Sequence[Objective]) -> str | None:
    """Return the run nearest to the best of every axis (None without rows).

    Each axis is scaled to the range of the rows; one without a range does not count.
    """
    if not rows:
        return None
    values = np.array([[number(row, a.column) for a in axes] for row in rows], dtype=np.float64)
    costs = values * np.array([-1.0 if a.is_maximised else 1.0 for a in axes])
    spread = np.ptp(costs, axis=0)
    scaled = (costs - costs.min(axis=0)) / np.where(spread > 0, spread, 1.0)
    return str(rows[int(np.argmin(np.linalg.norm(scaled, axis=1)))]["run"])
