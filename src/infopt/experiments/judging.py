"""What the service-level objective has to do with a slice: its measurement, its choice, or neither.

A job runs again when its specification changes. So a specification holds of the objective only what
the slice depends on, and that of a measuring job only what its numbers depend on: other limits may
choose another candidate among the same records.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

from infopt.bench.slo import SLO

if TYPE_CHECKING:
    from infopt.experiments.slice_spec import SliceSpec

JUDGING_STAGES = ("serving", "select")
"""Stages that look for the load at which the objective is just kept."""


def is_measured_under_slo(spec: SliceSpec) -> bool:
    """Tell whether the numbers of a slice depend on the objective."""
    return spec.criterion == "goodput" or spec.stage in JUDGING_STAGES


def with_needed_slo(spec: SliceSpec) -> SliceSpec:
    """Return a copy with as much of the objective as the slice depends on.

    Nothing where no limit decides, the limits that decide where some do, and the whole objective
    where goodput is what counts.
    """
    if is_measured_under_slo(spec):
        return spec
    limits = limits_of(spec)
    return dataclasses.replace(spec, slo=_given(limits) if limits else {})


def measured(spec: SliceSpec) -> SliceSpec:
    """Return a copy without what only decides between the candidates once they are measured."""
    needed = spec.slo if is_measured_under_slo(spec) else {}
    return dataclasses.replace(spec, slo=needed, slo_limits=(), prefers=None, decides=True)


def limits_of(spec: SliceSpec) -> SLO | None:
    """Return the objective reduced to the limits that a candidate has to keep; None for none.

    Raises:
        ConfigError: The objective is an unknown preset, or has an unknown key.
    """
    if not spec.slo_limits or not spec.slo:
        return None
    slo = SLO.from_spec(spec.slo)
    limits = {name: slo.limits[name] for name in spec.slo_limits if name in slo.limits}
    return SLO(**limits, percentile=slo.percentile) if limits else None


def _given(slo: SLO) -> dict[str, Any]:
    return {name: value for name, value in slo.to_dict().items() if value is not None}
