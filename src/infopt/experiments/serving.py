"""Stage `serving`: how much load the configuration chosen so far takes behind a real HTTP server.

The server is a process of its own; the client sends the workload at rising rates, as users would:
whether or not it keeps up. Each rate leaves a record (``transport: http``); what follows from them
is the saturation point of `infopt.bench.load_sweep`. Nothing is chosen here.

The rates are one measurement on one server, a minute in all: a killed job starts over.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from infopt.bench.http import HttpLoad, HttpLoadResult, HttpTarget, connect, run_http_load
from infopt.bench.load_sweep import SweepRow, sweep, sweep_row
from infopt.bench.rates import at_rate, build_for
from infopt.bench.slo import SLO
from infopt.bench.workloads import build_workload
from infopt.errors import MeasurementError
from infopt.experiments.devices import Device
from infopt.experiments.manifest import measuring_job
from infopt.experiments.server_energy import read_totals, server_energy_section
from infopt.experiments.server_process import ServerProcess, served
from infopt.experiments.serving_record import serving_sections
from infopt.experiments.slice_spec import SliceSpec
from infopt.hardware import fingerprint
from infopt.results import record_run

logger = logging.getLogger(__name__)

_WARMUP_SEED = 1_000_003
"""Added to the seed for warm-up requests, whose prompts must not be in the measured ones' cache."""


@dataclass(slots=True)
class ServingRun:
    """State of a running load sweep.

    Attributes:
        spec: What is measured; ``spec.options`` are those of the configuration's ``serving``.
        results_dir: Where records go.
        device: What it is measured on.
        num_threads: Compute threads of the server.
        slugs: Records so far, by rate.
        hardware: Fingerprint of the machine.
    """

    spec: SliceSpec
    results_dir: Path
    device: Device
    num_threads: int | None
    slugs: dict[float, str] = field(default_factory=dict)
    hardware: dict[str, Any] = field(default_factory=fingerprint)

    @property
    def slo(self) -> SLO:
        """The objective."""
        return SLO.from_spec(self.spec.slo)

    @property
    def config(self) -> Any:
        """What is served."""
        return self.spec.engine_config(self.spec.reference, num_threads=self.num_threads)

    @contextmanager
    def record(self, rate: float) -> Iterator[Any]:
        """Write the record of a rate, whatever happens."""
        slug = self.spec.record_slug(rate_slug(rate))
        workload = at_rate(self.spec.workloads["load"], rate)
        with record_run(
            stage=self.spec.stage,
            slug=slug,
            config=self.config,
            hardware=self.hardware,
            seeds=[self._seed],
            workload={**self.spec.workload(), "load_workload": workload, "transport": "http"},
            results_dir=self.results_dir,
        ) as draft:
            self.slugs[rate] = slug
            yield draft

    def measure(self, server: ServerProcess, target: HttpTarget, rate: float) -> HttpLoadResult:
        """Load the server at a rate and write the record.

        Raises:
            ServerDiedError: The server ended meanwhile.
            MeasurementError: No request was answered.
        """
        options = self.spec.options
        load = HttpLoad(target, endpoint=options["endpoint"], timeout_s=options["timeout_s"])
        with self.record(rate) as draft:
            server.check()
            seed = self._seed + len(self.slugs)  # equal prompts would come from the prefix cache
            spec = at_rate(self.spec.workloads["load"], rate)
            requests = build_for(spec, options["duration_s"], tokenizer=target.tokenizer, seed=seed)
            before, start_s = read_totals(server.url), time.perf_counter()
            result = run_http_load(load, requests, warmup=self._warmup(target, seed))
            seconds = time.perf_counter() - start_s
            server.check()
            energy = server_energy_section(before, read_totals(server.url), seconds)
            _check_answered(result, rate)
            row = sweep_row(rate, result, self.slo, options["target_share"])
            sections = serving_sections(result, row, self.slo, self._slo_name)
            sections["energy"] = energy
            sections["extra"] |= {"device": self.device.name, "slice": self.spec.name}
            for name, section in sections.items():
                setattr(draft, name, section)
        return result

    @property
    def _seed(self) -> int:
        return self.spec.seeds[0]

    @property
    def _slo_name(self) -> str:
        return self.spec.slo if isinstance(self.spec.slo, str) else "custom"

    def _warmup(self, target: HttpTarget, seed: int) -> Sequence[Any]:
        count = self.spec.options["warmup"]
        if not count:
            return []
        spec = {**self.spec.workloads["load"], "num_requests": count}
        return build_workload(spec, tokenizer=target.tokenizer, seed=seed + _WARMUP_SEED)


def run(
    spec: SliceSpec, results_dir: str | Path, *, num_threads: int | None = None
) -> dict[str, Any]:
    """Serve, load at rising rates, and return the manifest.

    Raises:
        MeasurementError: The server did not start or died; a failed record holds its last words.
    """
    with measuring_job() as job:
        state = ServingRun(spec, Path(results_dir), job.device, num_threads)
        found = _sweep(state)
    logger.info("serving: %s", found.saturation.sentence())
    return job.manifest(
        spec,
        [slug for _, slug in sorted(state.slugs.items())],
        spec.candidates,
        saturation=found.saturation.to_dict() | {"sentence": found.saturation.sentence()},
        skipped_per_s=list(found.skipped_per_s),
    )


def rate_slug(rate: float) -> str:
    """Return the name of a rate: ``rate-8``, ``rate-5.657``."""
    return f"rate-{round(rate, 3):.10g}"


def _sweep(state: ServingRun) -> Any:
    options = state.spec.options
    log_path = state.results_dir / "logs" / state.spec.stage / f"{state.spec.name}.server.log"
    with (
        _first_failure_recorded(state),
        served(
            state.config,
            log_path,
            port=options["port"],
            models_file=state.spec.models_file,
            energy=state.spec.energy.get("meter", "auto"),
            energy_constants=state.spec.energy.get("constants"),
        ) as server,
        connect(server.url) as target,
    ):
        return sweep(
            lambda rate: state.measure(server, target, rate),
            options["rates"],
            state.slo,
            target_share=options["target_share"],
            num_bisections=options["num_bisections"],
            on_row=_report,
        )


@contextmanager
def _first_failure_recorded(state: ServingRun) -> Iterator[None]:
    """Record what fails before the first rate is measured (a server that does not start)."""
    try:
        yield
    except Exception as error:
        if not state.slugs:
            with state.record(state.spec.options["rates"][0]):
                raise error from None
        raise


def _check_answered(result: HttpLoadResult, rate: float) -> None:
    if result.status_counts["completed"]:
        return
    error = next((r.error for r in result.records if r.error), "cut by the end of the run")
    raise MeasurementError(
        f"At {rate:g} requests/s none of {len(result.records)} requests was answered. The first: "
        f"{error}",
        field="serving",
        value=rate,
    )


def _report(row: SweepRow) -> None:
    logger.info(
        "serving: %g requests/s offered, %.3g/s within the objective (%.0f %%)",
        row.rate_per_s,
        row.goodput_per_s,
        100 * row.share.estimate,
    )
