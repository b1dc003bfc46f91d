"""Slice `select/capacity`: the highest rate of the composition and of the baselines.

One record per arm holds the best rate's run; the rates that were tried are among its samples. The
baseline of fixed batches is tuned under the same objective: first the size of its batches, then how
long they wait to become full. Where none of its rates keeps the objective, the objective is relaxed
until one does, and the record says by how much.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from infopt.bench.capacity import Capacity, relaxed
from infopt.bench.slo import SLO
from infopt.experiments.arms import Arm
from infopt.experiments.capacity_search import RateSearch, tune_fixed_batches
from infopt.experiments.machine import machine_peaks
from infopt.experiments.manifest import measuring_job
from infopt.experiments.sections import load_sections
from infopt.experiments.select_spec import BASELINES, COMPOSED, STATIC
from infopt.experiments.slices import SliceRun
from infopt.experiments.spec import SliceSpec
from infopt.results import RunRecord, finished_record, record_run

FACTS = ("rate_per_s", "goodput_per_s", "first_bad_per_s", "slo_factor", "batch_size", "timeout_s")
"""What the manifest says about each arm, of the record's ``extra``."""


def capacity_spec(spec: SliceSpec, winners: Mapping[str, Any]) -> SliceSpec:
    """Return the slice with its arms.

    Args:
        spec: From ``select_spec``.
        winners: Engine options of the composition.
    """
    sizes = spec.options["static"]["batch_sizes"]
    arms = {name: dict(options) for name, options in BASELINES.items()}
    arms[STATIC]["max_num_seqs"] = max(sizes)
    return dataclasses.replace(spec, candidates={**arms, COMPOSED: dict(winners)}, reference=STATIC)


def run(
    spec: SliceSpec, results_dir: str | Path, *, num_threads: int | None = None
) -> dict[str, Any]:
    """Search what is missing and return the manifest, with ``capacity`` by arm.

    Raises:
        InfoptError: An arm failed; its record says why.
    """
    num_resumed = 0
    with measuring_job() as job:
        state = SliceRun(spec, Path(results_dir), job.device, num_threads)
        for slug in spec.candidates:
            record = finished_record(**state.identity(slug))
            num_resumed += record is not None
            state.records[slug] = record or _measure(state, slug)
            state.report(slug, _words(state.records[slug]))
    return job.manifest(
        spec,
        [record.slug for record in state.records.values()],
        spec.candidates,
        num_resumed=num_resumed,
        capacity={slug: facts_of(record) for slug, record in state.records.items()},
    )


def facts_of(record: RunRecord) -> dict[str, Any]:
    """Return what was found for an arm."""
    extra = record.extra or {}
    return {name: extra.get(name) for name in FACTS}


def _measure(state: SliceRun, slug: str) -> RunRecord:
    with record_run(**state.identity(slug)) as draft, state.load_arm(slug) as arm:
        slo = SLO.from_spec(state.spec.slo)
        search = RateSearch(arm, state.spec, slo)
        factor = 1.0
        found = _find(search, state.spec, slug)
        if found.best is None and slug == STATIC:
            factor = search.relaxation()
            search.slo = relaxed(slo, factor)
            found = _find(search, state.spec, slug)
        for name, section in _sections(state, arm, search, found, factor).items():
            setattr(draft, name, section)
    assert draft.record is not None
    return draft.record


def _find(search: RateSearch, spec: SliceSpec, slug: str) -> Capacity:
    if slug != STATIC:
        return search.search(search.closed_rate())
    return tune_fixed_batches(search, **spec.options["static"])


def _sections(
    state: SliceRun, arm: Arm, search: RateSearch, found: Capacity, factor: float
) -> dict[str, Any]:
    probe = search.probe_of(found)
    sections = load_sections(
        arm.llm, [probe.result], search.slo, state.slo_name, machine_peaks(arm.llm)
    )
    sections["intervals"] = {}  # one run has none
    sections["samples"] = search.samples()
    sections["extra"] |= {
        "device": state.device.name,
        "slice": state.spec.name,
        "candidate": arm.slug,
        "position": list(state.spec.candidates).index(arm.slug),
        "slo_factor": factor,
        "batch_size": probe.fill.size if probe.fill else None,
        "timeout_s": probe.fill.timeout_s if probe.fill else None,
        **found.to_dict(),
    }
    return sections


def _words(record: RunRecord) -> str:
    facts = facts_of(record)
    batch = f", batches of {facts['batch_size']}" if facts["batch_size"] else ""
    waiting = f" after {facts['timeout_s']:g} s at most" if facts["timeout_s"] else ""
    slo = f", limits x {facts['slo_factor']:.3g}" if facts["slo_factor"] != 1 else ""
    return (
        f"{facts['goodput_per_s']:.3g} requests/s within the objective at "
        f"{facts['rate_per_s']:.3g}/s{batch}{waiting}{slo}"
    )
