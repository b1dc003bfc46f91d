"""Configurations that are measured in turns, and what each of them gave."""

from __future__ import annotations

import time
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from infopt.bench.load_result import LoadResult
from infopt.bench.paired import PairedResult, run_paired
from infopt.bench.slo import SLO
from infopt.cli.console import note
from infopt.config import EngineConfig
from infopt.energy import choose_meter
from infopt.experiments.arms import Arm, make_requests
from infopt.experiments.devices import measuring_device
from infopt.experiments.machine import machine_peaks
from infopt.experiments.sections import comparison_section, load_sections
from infopt.hardware import fingerprint
from infopt.results import RunRecord, code_identity, library_versions, make_slug

STAGE = "bench"
NUM_WARMUP = 1
"""Rounds before the measured ones."""


@dataclass(frozen=True, slots=True)
class BenchPlan:
    """What is measured and how often.

    Attributes:
        workload: ``{"kind": name, **options}``.
        slo: Objective that goodput is judged by.
        slo_name: Its preset, or ``custom``.
        seed: Seed of the workload.
        repeats: Measured rounds.
        open_loop: Requests arrive when the workload says, instead of all at once.
    """

    workload: Mapping[str, Any]
    slo: SLO
    slo_name: str
    seed: int = 0
    repeats: int = 3
    open_loop: bool = False


@dataclass(frozen=True, slots=True)
class BenchReport:
    """Everything that was measured.

    Attributes:
        plan: What was asked for.
        paired: Output tokens per second by arm, and the ratios to the first one.
        results: Measured rounds by arm.
        records: One record per arm, the reference first.
    """

    plan: BenchPlan
    paired: PairedResult
    results: dict[str, list[LoadResult]]
    records: dict[str, RunRecord]


def run_bench(configs: Mapping[str, EngineConfig], plan: BenchPlan) -> BenchReport:
    """Load all arms, let them take turns, and describe each; the first is the reference.

    Waits while another measurement runs on this machine.

    Raises:
        MeasurementError: A request did not complete.
    """
    with measuring_device(), ExitStack() as stack:
        arms = [_open(stack, name, config, plan) for name, config in configs.items()]
        note(f"measuring {NUM_WARMUP} + {plan.repeats} rounds")
        started = datetime.now(UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
        start_s = time.perf_counter()
        paired = run_paired(
            {arm.slug: arm.run for arm in arms},
            arms[0].slug,
            plan.repeats,
            num_warmup=NUM_WARMUP,
            seed=plan.seed,
        )
        duration_s = time.perf_counter() - start_s
        results = {arm.slug: arm.results[NUM_WARMUP:] for arm in arms}
        records = {
            arm.slug: _record(arm, plan, results, arms[0].slug, started, duration_s) for arm in arms
        }
    return BenchReport(plan, paired, results, records)


def _open(stack: ExitStack, name: str, config: EngineConfig, plan: BenchPlan) -> Arm:
    note(f"loading {name} ({config.model})")
    load = "open" if plan.open_loop else "closed"
    arm = stack.enter_context(Arm(name, config, load=load, slo=plan.slo, meter=choose_meter))
    arm.requests = [make_requests(arm.llm, plan.workload, plan.seed)]
    return arm


def _record(
    arm: Arm,
    plan: BenchPlan,
    results: Mapping[str, list[LoadResult]],
    reference: str,
    started: str,
    duration_s: float,
) -> RunRecord:
    own = results[arm.slug]
    sections = load_sections(arm.llm, own, plan.slo, plan.slo_name, machine_peaks(arm.llm))
    if arm.slug != reference:
        sections["comparison"] = comparison_section(
            results[reference], own, plan.slo, make_slug(arm=reference)
        )
    return RunRecord(
        stage=STAGE,
        slug=make_slug(arm=arm.slug),
        config=arm.llm.config.to_dict(),
        commit=code_identity(),
        versions=library_versions(),
        hardware=fingerprint(),
        seeds=(plan.seed,),
        started=started,
        duration_s=duration_s,
        workload={**plan.workload, "load": arm.load, "repeats": plan.repeats},
        **sections,
    )
