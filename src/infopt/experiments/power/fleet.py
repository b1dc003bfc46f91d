"""A fleet: a candidate of the slices `threads` and `replicas`, as processes that share traffic."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from types import TracebackType
from typing import Any

from infopt.bench.load_result import LoadResult
from infopt.bench.slo import SLO
from infopt.config import EngineConfig
from infopt.energy import EnergyConstants, MeterChoice, RunEnergy
from infopt.energy.together import modelled_together
from infopt.experiments.arms import figures
from infopt.experiments.power.instance import Instance, make_order, usable_core_ids
from infopt.experiments.sections import Sections, traffic_sections
from infopt.experiments.slice_run import Contestant, SliceRun

INSTANCES, THREADS, SHARE = "num_instances", "threads_per_instance", "machine_share"


class Fleet:
    """Loaded processes that serve the same requests, divided among them in turn.

    Args:
        slug: Its name.
        instances: The processes; they may still be loading.
        choice: The meter of this process, used where several of them share the counters.
        constants: Of the modelled energy.
        slo: Objective; None where nothing depends on one.
    """

    def __init__(
        self,
        slug: str,
        instances: Sequence[Instance],
        choice: MeterChoice,
        constants: EnergyConstants,
        slo: SLO | None,
    ) -> None:
        """Wait until all are ready."""
        self.slug, self.instances, self.slo = slug, instances, slo
        self._choice, self._constants = choice, constants
        self.results: list[LoadResult] = []
        try:
            for instance in instances:
                instance.wait_until_ready()
        except BaseException:
            self.stop()
            raise

    def __enter__(self) -> Fleet:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    def stop(self) -> None:
        """End all processes."""
        for instance in self.instances:
            instance.stop()

    @property
    def num_cores(self) -> int:
        """Cores of all processes."""
        return sum(instance.num_cores for instance in self.instances)

    def run(self) -> float:
        """Serve the requests once, keep the result, and return the throughput in tokens/s."""
        window = self._choice.meter.start()
        for instance in self.instances:
            instance.begin("run")
        parts: list[LoadResult] = [instance.finish() for instance in self.instances]
        window.stop()
        result = merged(parts)
        if len(parts) == 1:
            result.energy = parts[0].energy
        elif self._choice.meter.source == "modelled":
            energies = [part.energy or RunEnergy() for part in parts]
            result.energy = modelled_together(
                energies, result.duration_s, self.num_cores, self._constants
            )
        else:  # the counters are the machine's: who used it is not told apart
            result.energy = RunEnergy(window.reading(), None, self._choice.why_not)
        self.results.append(result)
        return figures(result, self.slo)["output_tokens_per_s"]


def merged(parts: Sequence[LoadResult]) -> LoadResult:
    """Return runs of several processes at the same time as one; their clock is the machine's."""
    return replace(
        parts[0],
        records=[record for part in parts for record in part.records],
        start_s=min(part.start_s for part in parts),
        end_s=max(part.end_s for part in parts),
        step_log=[step for part in parts for step in part.step_log],
        was_cut=any(part.was_cut for part in parts),
        energy=None,
    )


class FleetRun(SliceRun):
    """A slice whose candidates are fleets; ``spec.options["fleets"]`` has their threads by slug."""

    __slots__ = ()

    def config(self, slug: str) -> EngineConfig:
        """Return the configuration of each of a candidate's instances."""
        threads: list[int] = self.spec.options["fleets"][slug]
        return self.spec.engine_config(slug).replace(num_threads=threads[0])

    def open_arm(self, slug: str) -> Contestant:
        """Start the processes of a candidate, each on cores of its own."""
        threads: list[int] = self.spec.options["fleets"][slug]
        cores = usable_core_ids(self.num_threads)
        choice = self.choose_meter("cpu")
        # Counters are the machine's: processes that share them do not read them each.
        has_meter = len(threads) == 1 or choice.meter.source == "modelled"
        config = self.config(slug)
        instances, first = [], 0
        for place, count in enumerate(threads):
            order = make_order(
                self.spec, slug, config, part=(place, len(threads)), has_meter=has_meter
            )
            instances.append(Instance(order, cores[first : first + count]))
            first += count
        constants = EnergyConstants.from_dict(self.spec.energy.get("constants") or {})
        return Fleet(slug, instances, choice, constants, self.slo)

    def sections(
        self, arm: Contestant, results: list[LoadResult], reference: Contestant | None
    ) -> Sections:
        """Return what the answers say, the size of the instances, and who used the energy."""
        del reference
        assert isinstance(arm, Fleet)
        sections = traffic_sections(results, self.slo, self.slo_name)
        sections["samples"] |= request_samples(results[-1])
        total = len(usable_core_ids(self.num_threads))
        sections["extra"] = {
            INSTANCES: len(arm.instances),
            THREADS: arm.instances[0].num_cores,
            SHARE: arm.num_cores / total,
            **phase_times(results),
        }
        return sections


def request_samples(result: LoadResult) -> dict[str, list[Any]]:
    """Return tokens and attributed joules of every request of a run; empty without an account."""
    account = result.energy.account if result.energy else None
    if account is None:
        return {}
    rows = [
        (r.num_prompt_tokens, r.num_output_tokens, used.prefill_nj / 1e9, used.decode_nj / 1e9)
        for r in result.records
        if (used := account.requests.get(r.request.request_id)) is not None
    ]
    names = ("prompt_tokens", "output_tokens", "prefill_j", "decode_j")
    return {f"requests.{n}": [row[i] for row in rows] for i, n in enumerate(names)} if rows else {}


def phase_times(results: Sequence[LoadResult]) -> dict[str, float | None]:
    """Return seconds per prompt token and per output token, from steps of one kind alone.

    They are those of one instance at this workload's batch; mixed steps are left out.
    """
    steps = [step for result in results for step in result.step_log]
    prefill = [s for s in steps if s.num_prefill_tokens and not s.num_decode_tokens]
    decode = [s for s in steps if s.num_decode_tokens and not s.num_prefill_tokens]
    num_prompt = sum(s.num_prefill_tokens for s in prefill)
    num_output = sum(s.num_decode_tokens for s in decode)
    return {
        "prefill_s_per_token": sum(s.duration_s for s in prefill) / num_prompt if prefill else None,
        "decode_s_per_token": sum(s.duration_s for s in decode) / num_output if decode else None,
    }
