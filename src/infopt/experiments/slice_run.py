"""A slice while it runs: how its candidates are loaded, and what is read off their runs."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol

from infopt.bench.fixed_batches import BatchFill
from infopt.bench.load_result import LoadResult
from infopt.bench.slo import SLO
from infopt.bench.workload_types import WorkloadRequest
from infopt.config import EngineConfig
from infopt.energy import MeterChoice
from infopt.experiments.arms import Arm, make_requests, requests_at
from infopt.experiments.devices import Device
from infopt.experiments.energy import idle_watts, meter_of
from infopt.experiments.machine import machine_peaks
from infopt.experiments.sections import Sections, load_sections
from infopt.experiments.slice_spec import SliceSpec
from infopt.hardware import fingerprint
from infopt.results import RunRecord

logger = logging.getLogger(__name__)

Probe = Callable[[Arm, Arm | None], dict[str, Any]]
"""Measures something more: (arm, reference arm or None for the reference itself) -> sections."""


class Contestant(Protocol):
    """What takes turns: a loaded candidate in this process (`Arm`), or several in others."""

    slug: str
    results: list[LoadResult]

    def __enter__(self) -> Contestant: ...

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None: ...

    def run(self) -> float:
        """Serve the requests once, keep the result, and return its throughput."""
        ...


@dataclass(slots=True)
class SliceRun:
    """State of a running slice.

    Attributes:
        spec: What is measured.
        results_dir: Where records go.
        device: What it is measured on.
        num_threads: Compute threads.
        probes: Further measurements per candidate.
        records: Finished records by candidate.
        failures: Errors by candidate.
        left_out: Why candidates were not measured, where the model does not have what they ask for.
        hardware: Fingerprint of the machine.
        requests: What arms without a load of their own serve, one list per seed, by model: token
            ids are its own.
        meter: What measures the energy; chosen by the first.
        idle_watts: Power of doing nothing, with that model loaded.
    """

    spec: SliceSpec
    results_dir: Path
    device: Device
    num_threads: int | None
    probes: Sequence[Probe] = ()
    records: dict[str, RunRecord] = field(default_factory=dict)
    failures: dict[str, Exception] = field(default_factory=dict)
    left_out: dict[str, str] = field(default_factory=dict)
    hardware: dict[str, Any] = field(default_factory=fingerprint)
    requests: dict[str, list[list[WorkloadRequest]]] = field(default_factory=dict)
    meter: MeterChoice | None = None
    idle_watts: float | None = None

    @property
    def slo(self) -> SLO | None:
        """The objective; None where nothing of the slice depends on one."""
        return SLO.from_spec(self.spec.slo) if self.spec.slo else None

    @property
    def slo_name(self) -> str:
        """Its preset, or ``custom``."""
        return self.spec.slo if isinstance(self.spec.slo, str) else "custom"

    def config(self, slug: str) -> EngineConfig:
        """Return a candidate's engine configuration."""
        return self.spec.engine_config(slug, num_threads=self.num_threads)

    def identity(self, slug: str) -> dict[str, Any]:
        """Return the arguments that `record_run` and `finished_record` share."""
        return {
            "stage": self.spec.stage,
            "slug": self.spec.record_slug(slug),
            "config": self.config(slug),
            "hardware": self.hardware,
            "seeds": list(self.spec.seeds),
            "workload": self.spec.workload(),
            "results_dir": self.results_dir,
        }

    def open_arm(self, slug: str) -> Contestant:
        """Load what takes turns for a candidate."""
        return self.load_arm(slug)

    def load_arm(self, slug: str) -> Arm:
        """Load a candidate here; all of a model get the same requests, others the same lengths."""
        arm = Arm(
            slug, self.config(slug), load=self.spec.load, slo=self.slo, meter=self.choose_meter
        )
        own = self.spec.load_of(slug)
        if own:
            arm.fill = BatchFill(**own["fill"]) if own["fill"] else None
            arm.requests = self._requests_at(arm, own["rate_per_s"])
            return arm
        model = arm.llm.config.model
        if model not in self.requests:
            workload = self.spec.workloads["load"]
            made = [make_requests(arm.llm, workload, seed) for seed in self.spec.seeds]
            self.requests[model] = made
        arm.requests = self.requests[model]
        return arm

    def sections(
        self, arm: Contestant, results: list[LoadResult], reference: Contestant | None
    ) -> Sections:
        """Return what a candidate's runs and the probes say about it.

        Args:
            arm: The candidate.
            results: Its runs, warm-up left out.
            reference: What it took turns with; None for the reference itself.
        """
        assert isinstance(arm, Arm)
        sections = load_sections(arm.llm, results, self.slo, self.slo_name, machine_peaks(arm.llm))
        for probe in self.probes:
            assert reference is None or isinstance(reference, Arm)
            for name, section in probe(arm, reference).items():
                sections[name] = {**(sections.get(name) or {}), **section}
        return sections

    def _requests_at(self, arm: Arm, rate: float) -> list[list[WorkloadRequest]]:
        search = self.spec.options["search"]
        return [
            requests_at(arm.llm, self.spec.workloads["load"], rate, search, seed)
            for seed in self.spec.seeds
        ]

    def choose_meter(self, device: str) -> MeterChoice:
        """Choose what measures the energy, once per job, and say why nothing better does."""
        if self.meter is None:
            self.meter = meter_of(self.spec.energy, device)
            logger.info("energy: %s", self.meter)
            self.idle_watts = idle_watts(self.meter, self.spec.energy)
        return self.meter

    def report(self, slug: str, text: str) -> None:
        """Log one line of progress."""
        done, total = len(self.records) + len(self.failures), len(self.spec.candidates)
        logger.info("%s/%s %d/%d %s: %s", self.spec.stage, self.spec.name, done, total, slug, text)
