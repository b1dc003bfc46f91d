"""One arm under rising rates, and the tuning of fixed batches."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from infopt.bench.capacity import Capacity, judge_rate, relaxed, search_capacity
from infopt.bench.fixed_batches import BatchFill
from infopt.bench.load_result import LoadResult
from infopt.bench.slo import SLO
from infopt.bench.workload_types import WorkloadRequest
from infopt.experiments.arms import Arm, requests_at
from infopt.experiments.spec import SliceSpec

_START_SHARE, _STEP = 0.9, 1.25
"""Where a search begins, as a share of the rate at which a full queue is served, and by how much it
goes on: with two halvings, what is found lies within 6 % of the highest rate."""

_CHALLENGE = 1.1
"""A setting is better than the best so far if it sustains a rate that is this much higher."""

_MIN_CLOSED = 16
"""Requests of a full queue, so that a few short ones do not make a small batch look fast."""

_RELAX_STEP, _MAX_RELAXATIONS = 1.25, 40


@dataclass(frozen=True, slots=True)
class Probe:
    """One load run of a search."""

    fill: BatchFill | None
    rate_per_s: float
    result: LoadResult


class RateSearch:
    """Loads an arm at rates and remembers each run.

    Args:
        arm: Ready; what it serves alone is its warm-up.
        spec: Its slice, with the options of the search.
        slo: The objective.
    """

    def __init__(self, arm: Arm, spec: SliceSpec, slo: SLO) -> None:
        """Nothing is measured yet."""
        self.arm, self.spec, self.slo = arm, spec, slo
        self.probes: list[Probe] = []

    def closed_rate(self, num_requests: int | None = None) -> float:
        """Return requests/s of a full queue, which no arrival can exceed by much.

        Args:
            num_requests: How many; default is the workload.
        """
        requests = [_at_once(r) for r in self.arm.requests[0][:num_requests]]
        return len(requests) / self.arm.serve(requests).duration_s

    def measure(self, rate: float) -> LoadResult:
        """Load the arm at a rate, once; a rate that comes again has its first result."""
        known = self._find(rate)
        if known is not None:
            return known.result
        workload, search = self.spec.workloads["load"], self.spec.options["search"]
        requests = requests_at(self.arm.llm, workload, rate, search, self.spec.seeds[0])
        result = self.arm.serve(requests)
        self.probes.append(Probe(self.arm.fill, rate, result))
        return result

    def search(self, closed_rate: float) -> Capacity:
        """Search the highest sustained rate from a share of the full queue's on."""
        search = self.spec.options["search"]
        return search_capacity(
            self.measure,
            _START_SHARE * closed_rate,
            self.slo,
            target_share=search["target_share"],
            factor=_STEP,
            num_bisections=search["num_bisections"],
        )

    def challenge(self, best: Capacity) -> Capacity | None:
        """Search from above what another setting sustains; None where that rate is too much."""
        target = self.spec.options["search"]["target_share"]
        rate = _CHALLENGE * best.rate_per_s
        row = judge_rate(rate, self.measure(rate), self.slo, target)
        if not row.is_good or row.goodput_per_s <= best.goodput_per_s:
            return None
        return self.search(rate / _START_SHARE)

    def relaxation(self) -> float:
        """Return by how much the limits must be longer for one of the runs so far to keep them."""
        target = self.spec.options["search"]["target_share"]
        for step in range(1, _MAX_RELAXATIONS):
            slo = relaxed(self.slo, _RELAX_STEP**step)
            for probe in self.probes:
                if judge_rate(probe.rate_per_s, probe.result, slo, target).is_good:
                    return _RELAX_STEP**step
        return _RELAX_STEP**_MAX_RELAXATIONS

    def probe_of(self, found: Capacity) -> Probe:
        """Return the run at the rate that was found, with the batches the arm has now."""
        probe = self._find(found.rate_per_s)
        assert probe is not None, "a capacity is a rate that was measured"
        return probe

    def _find(self, rate: float) -> Probe | None:
        wanted = (self.arm.fill, rate)
        return next((p for p in self.probes if (p.fill, p.rate_per_s) == wanted), None)

    def samples(self) -> dict[str, list[float | None]]:
        """Return every run as lists whose entries belong together."""
        rows = [(p, p.result.evaluate(self.slo)) for p in self.probes]
        return {
            "search.rate_per_s": [p.rate_per_s for p, _ in rows],
            "search.goodput_per_s": [r.goodput_requests_per_s for _, r in rows],
            "search.share": [r.goodput_share for _, r in rows],
            "search.ttft_p90_s": [p.result.latency.ttft.p90 for p, _ in rows],
            "search.batch_size": [float(p.fill.size) if p.fill else None for p, _ in rows],
            "search.timeout_s": [p.fill.timeout_s if p.fill else None for p, _ in rows],
        }


def tune_fixed_batches(
    search: RateSearch, batch_sizes: Sequence[int], fill_timeouts_s: Sequence[float]
) -> Capacity:
    """Return the capacity of the best size and waiting; the arm keeps them.

    Sizes are tried from the one that serves a full queue fastest. One whose full queue is slower
    than the goodput found already cannot win; the others have to sustain a higher rate.

    Args:
        search: Of the arm.
        batch_sizes: Sizes to try.
        fill_timeouts_s: Waiting to try beside none, with the best size.
    """
    arm, closed = search.arm, {}
    for size in batch_sizes:
        arm.fill = BatchFill(size)
        closed[size] = search.closed_rate(max(_MIN_CLOSED, size))
    order = sorted(batch_sizes, key=lambda size: -closed[size])
    arm.fill = best_fill = BatchFill(order[0])
    best = search.search(closed[order[0]])
    others = [BatchFill(size) for size in order[1:]]
    for fill in others:
        if closed[fill.size] * _CHALLENGE > best.goodput_per_s:
            arm.fill = fill
            found = search.challenge(best) if best.best else search.search(closed[fill.size])
            if found is not None and found.goodput_per_s > best.goodput_per_s:
                best, best_fill = found, fill
    size = best_fill.size
    for timeout_s in fill_timeouts_s if best.best else ():
        arm.fill = BatchFill(size, timeout_s)
        found = search.challenge(best)
        if found is not None and found.goodput_per_s > best.goodput_per_s:
            best, best_fill = found, arm.fill
    arm.fill = best_fill
    return best


def _at_once(request: WorkloadRequest) -> WorkloadRequest:
    return WorkloadRequest(
        request.request_id, 0.0, request.prompt_token_ids, request.max_tokens, request.prefix_group
    )
