"""Stage `baseline`: which precision to compute in, and how far it runs from the machine's limits.

Each precision serves the load workload against the reference, then a request at a time, then single
steps of known size and the ops of some (for the roofline), and passes the quality suite against the
reference's logits.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from infopt.experiments.arms import Arm, make_requests
from infopt.experiments.machine import machine_peaks
from infopt.experiments.probes import lone_latency, op_curve, quality, step_curve
from infopt.experiments.slice_spec import SliceSpec
from infopt.experiments.slices import Probe, run_slice

_SINGLE_REPEATS = 3  # no ratio is claimed from these
_OPS_BUDGET_S = 10.0
"""For the ops of all candidates together."""


def run(
    spec: SliceSpec, results_dir: str | Path, *, num_threads: int | None = None
) -> dict[str, Any]:
    """Run what is missing of the slice and return its manifest."""
    probes = [quality_probe(spec), single_probe(spec), _steps, ops_probe(spec)]
    return run_slice(spec, results_dir, num_threads=num_threads, probes=probes)


def quality_probe(spec: SliceSpec) -> Probe:
    """Return the probe that runs the quality suite of the slice's tier."""

    def probe(arm: Arm, reference: Arm | None) -> dict[str, Any]:
        if spec.quality_tier is None:
            return {}
        judge = reference.llm if reference else None
        return {"quality": quality(arm.llm, spec.quality_tier, judge)}

    return probe


def single_probe(spec: SliceSpec) -> Probe:
    """Return the probe that serves the ``single`` workload one request at a time."""

    def probe(arm: Arm, reference: Arm | None) -> dict[str, Any]:
        del reference
        requests = make_requests(arm.llm, spec.workloads["single"], spec.seeds[0])
        return {"extra": lone_latency(arm.llm, requests, _SINGLE_REPEATS)}

    return probe


def ops_probe(spec: SliceSpec) -> Probe:
    """Return the probe that times single ops; the candidates share its time."""
    budget_s = _OPS_BUDGET_S / len(spec.candidates)

    def probe(arm: Arm, reference: Arm | None) -> dict[str, Any]:
        del reference
        return {"samples": op_curve(arm.llm, machine_peaks(arm.llm), budget_s)}

    return probe


def _steps(arm: Arm, reference: Arm | None) -> dict[str, Any]:
    del reference
    return {"samples": step_curve(arm.llm, machine_peaks(arm.llm))}
