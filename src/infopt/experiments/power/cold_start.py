"""The slice `cold_start`: what it takes to start an engine, by weight format, and to keep it warm.

A start is measured from the creation of the process to the first token of its first answer: the
interpreter, imports, loading and packing weights, pages, the first step. Each format starts once
before anything counts: weights that have to be converted are then in infopt's cache, and the files
in the system's. Formats take turns. On a CPU the whole of it is the process's own; a start on a GPU
includes its context. Then the loaded engine waits, and its idle power is measured.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

from infopt.bench.load_result import LoadResult
from infopt.bench.stats import bootstrap_interval, paired_ratio
from infopt.energy import (
    EnergyConstants,
    EnergyReading,
    MeterChoice,
    ModelledWork,
    add_readings,
)
from infopt.energy.keep_warm import KeepWarm
from infopt.energy.model import energy_of, modelled_reading
from infopt.errors import WeightFormatError
from infopt.experiments.energy import meter_of, reading_section
from infopt.experiments.manifest import measuring_job
from infopt.experiments.power.instance import Instance, make_order, usable_core_ids
from infopt.experiments.power.skipping import runs_on_gpu
from infopt.experiments.sections import traffic_sections
from infopt.experiments.slice_run import SliceRun
from infopt.experiments.slice_spec import SliceSpec
from infopt.results import finished_record, record_run

logger = logging.getLogger(__name__)

START_S = "cold_start_s"


@dataclass(frozen=True, slots=True)
class ColdStart:
    """One start.

    Attributes:
        seconds: Creation of the process to the first token.
        ready_s: Part of it until the engine was loaded.
        energy: Of the start.
        warm: Of waiting, loaded.
        weights_bytes: Of the loaded weights.
        answer: The first request.
    """

    seconds: float
    ready_s: float
    energy: EnergyReading
    warm: EnergyReading
    weights_bytes: float
    answer: LoadResult


@dataclass(slots=True)
class ColdStarts:
    """State of the running slice.

    Attributes:
        run: Identities of its records.
        cores: What each process is pinned to.
        choice: The meter.
        constants: Of the modelled energy.
        starts: By candidate, in order; the first of each does not count.
        left_out: Formats that the model does not come in.
    """

    run: SliceRun
    cores: list[int]
    choice: MeterChoice
    constants: EnergyConstants
    starts: dict[str, list[ColdStart]] = field(default_factory=dict)
    left_out: dict[str, str] = field(default_factory=dict)

    def start(self, slug: str) -> None:
        """Start a candidate, let it answer and wait, and end it."""
        spec = self.run.spec
        order = make_order(spec, slug, self.run.config(slug), has_meter=False)
        window = self.choice.meter.start()
        with Instance(order, self.cores) as instance:
            ready = instance.wait_until_ready()
            answer, state = instance.ask("first")
            window.stop()
            first_s = answer.records[0].timing.chunks[0].time_s
            energy = self._reading(window, first_s - instance.started_s, state)
            warm = self._warm(instance, state)
        found = ColdStart(
            seconds=first_s - instance.started_s,
            ready_s=ready["at_s"] - instance.started_s,
            energy=energy,
            warm=warm,
            weights_bytes=state["weights_bytes"],
            answer=answer,
        )
        self.starts.setdefault(slug, []).append(found)

    def _warm(self, instance: Instance, before: Mapping[str, float]) -> EnergyReading:
        window = self.choice.meter.start()
        time.sleep(self.run.spec.options["idle_s"])
        window.stop()
        after = instance.ask("state")
        spent = {"cpu_s": after["cpu_s"] - before["cpu_s"], "weights_bytes": 0.0}
        return self._reading(window, after["at_s"] - before["at_s"], spent)

    def _reading(self, window: Any, seconds: float, state: Mapping[str, float]) -> EnergyReading:
        if self.choice.meter.source != "modelled":
            return window.reading()
        # Weights are counted as moved once: read from their file into memory.
        work = ModelledWork(seconds * len(self.cores), state["cpu_s"], state["weights_bytes"])
        return modelled_reading(work, seconds, self.constants)


def run_cold_start(
    spec: SliceSpec, results_dir: str | Path, *, num_threads: int | None
) -> dict[str, Any]:
    """Run what is missing of the slice and return its manifest.

    Raises:
        MeasurementError: A process failed.
    """
    with measuring_job() as job:
        run = SliceRun(spec, Path(results_dir), job.device, num_threads)
        meter = meter_of(spec.energy, "cuda" if runs_on_gpu(spec) else "cpu")
        logger.info("energy: %s", meter)
        constants = EnergyConstants.from_dict(spec.energy.get("constants") or {})
        state = ColdStarts(run, usable_core_ids(num_threads), meter, constants)
        missing = [s for s in spec.candidates if finished_record(**run.identity(s)) is None]
        if missing:
            missing = list(spec.candidates)  # they are compared with each other: all or none
            _start_all(state, missing)
            _write_records(state)
    kept = [slug for slug in spec.candidates if slug not in state.left_out]
    return job.manifest(
        spec,
        map(spec.record_slug, kept),
        kept,
        num_resumed=0 if missing else len(kept),
        left_out=state.left_out,
    )


def _start_all(state: ColdStarts, slugs: Sequence[str]) -> None:
    """Start every candidate once to warm caches, then ``starts`` times in turn."""
    for turn in range(state.run.spec.options["starts"] + 1):
        for slug in slugs if turn % 2 == 0 else slugs[::-1]:
            if slug in state.left_out:
                continue
            try:
                state.start(slug)
            except WeightFormatError as error:
                state.left_out[slug] = error.message
                logger.info("power/cold_start %s is left out: %s", slug, error.message)
                continue
            found = state.starts[slug][-1]
            what = "before anything counts" if turn == 0 else f"{turn}"
            logger.info("power/cold_start %s %s: %.2f s", slug, what, found.seconds)


def _write_records(state: ColdStarts) -> None:
    run = state.run
    reference = state.starts.get(run.spec.reference, [])[1:]
    for slug, starts in state.starts.items():
        with record_run(**run.identity(slug)) as draft:
            sections = cold_start_sections(starts, state.constants)
            answers = [start.answer for start in starts[1:]]
            for name, section in traffic_sections(answers, run.slo, run.slo_name).items():
                if name in ("latency", "throughput", "slo"):
                    setattr(draft, name, section)
            if slug != run.spec.reference and reference:
                sections["comparison"] = {START_S: _ratio(reference, starts[1:], run)}
            sections["extra"] |= {
                "device": run.device.name,
                "slice": run.spec.name,
                "candidate": slug,
                "position": list(run.spec.candidates).index(slug),
            }
            for name, section in sections.items():
                setattr(draft, name, section)


def cold_start_sections(starts: Sequence[ColdStart], constants: EnergyConstants) -> dict[str, Any]:
    """Return the sections of a format's record.

    Args:
        starts: In order; the first only warmed the caches.
        constants: Of the modelled energy.
    """
    counted = starts[1:]
    seconds = [start.seconds for start in counted]
    energy, warm = (add_readings([getattr(s, n) for s in counted]) for n in ("energy", "warm"))
    found = bootstrap_interval(seconds)
    num_tokens = sum(r.num_output_tokens for s in counted for r in s.answer.records)
    extra = {
        START_S: found.estimate,
        "first_start_s": starts[0].seconds,
        "ready_s": median(start.ready_s for start in counted),
        "weights_bytes": counted[0].weights_bytes,
        **_joules(energy, len(counted)),
        **{f"warm_watts{end}": value for end, value in _watts(warm).items()},
        **break_even_figures(energy, warm, len(counted), constants),
    }
    return {
        "energy": reading_section(energy, num_tokens, len(counted)),
        "samples": {START_S: seconds, "ready_s": [start.ready_s for start in counted]},
        "intervals": {
            f"extra.{START_S}": found.to_dict(),
        },
        "extra": extra,
    }


def break_even_figures(
    energy: EnergyReading, warm: EnergyReading, num_starts: int, constants: EnergyConstants
) -> dict[str, float | None]:
    """Return how long waiting takes as much energy as a start, and the rate that belongs to it.

    Where both are modelled, ``low`` and ``high`` are the least and the most over every combination
    of the ends of the constants: a quotient of sums that are linear in each has its extremes there.

    Args:
        energy: Of all starts.
        warm: Of waiting.
        num_starts: How many starts.
        constants: Of the modelled energy.
    """
    if not energy.joules or not warm.joules:
        return {"hold_s": None, "break_even_per_s": None}
    middle = KeepWarm(energy.joules / num_starts, warm.joules / warm.seconds)
    found: dict[str, float | None] = {
        "hold_s": middle.hold_s,
        "break_even_per_s": middle.break_even_per_s,
    }
    if energy.work is None or warm.work is None:
        return found
    holds = [
        energy_of(energy.work, *c) / num_starts / (energy_of(warm.work, *c) / warm.seconds)
        for c in constants.corners()
    ]
    found["hold_s_low"], found["hold_s_high"] = min(holds), max(holds)
    found["break_even_per_s_low"] = 1 / max(holds)
    found["break_even_per_s_high"] = 1 / min(holds)
    return found


def _joules(total: EnergyReading, count: int) -> dict[str, float | None]:
    ends = {"": total.joules, "_low": total.low, "_high": total.high}
    return {
        f"start_j{end}": None if value is None else value / count for end, value in ends.items()
    }


def _watts(total: EnergyReading) -> dict[str, float | None]:
    ends = {"": total.joules, "_low": total.low, "_high": total.high}
    seconds = total.seconds
    return {end: value / seconds if value and seconds else None for end, value in ends.items()}


def _ratio(
    reference: Sequence[ColdStart], candidate: Sequence[ColdStart], run: SliceRun
) -> dict[str, Any]:
    found = paired_ratio(
        [start.seconds for start in reference],
        [start.seconds for start in candidate],
        higher_is_better=False,
    )
    return {**found.to_dict(), "reference": run.spec.record_slug(run.spec.reference)}
