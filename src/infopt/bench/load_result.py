"""`LoadResult`: everything one load run saw, and its summary as plain data."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any, Literal

from infopt.bench.latency import (
    Chunk,
    LatencySummary,
    RequestStatus,
    RequestTiming,
    summarize_latency,
)
from infopt.bench.slo import SLO, SLOReport, evaluate_slo
from infopt.bench.workload_types import WorkloadRequest
from infopt.energy.run import RunEnergy
from infopt.engine.stats import StepStats
from infopt.outputs import CompletionOutput, RequestOutput

LoadMode = Literal["open-loop", "closed-loop", "batch"]

_RATE_TOLERANCE = 0.05


@dataclass(slots=True)
class RequestRecord:
    """One request of a run: what was asked, when, and what came back.

    This one was answered by an engine of this process; a record of another source overrides what
    it reads off ``output``.

    Attributes:
        request: The workload's request.
        scheduled_s: When it was due, on the engine's clock.
        dispatched_s: When it was handed to the engine (None: never).
        output: The engine's last word on it (None: refused or never sent).
        error: Class and message of the refusal, if it was refused.
        was_cut: Whether the run ended before it did.
    """

    request: WorkloadRequest
    scheduled_s: float
    dispatched_s: float | None = None
    output: RequestOutput | None = None
    error: str | None = None
    was_cut: bool = False

    @property
    def status(self) -> RequestStatus:
        """How it ended."""
        if self.was_cut:
            return "unfinished"
        if self.error is not None:
            return "failed"
        if self.output is None or not self.output.finished:
            return "unfinished"
        reasons = {o.finish_reason for o in self.output.outputs}
        if "error" in reasons:
            return "failed"
        if "abort" in reasons:
            return "aborted"
        return "completed" if self.num_output_tokens else "empty"

    @property
    def num_output_tokens(self) -> int:
        """Tokens of all its completions."""
        return sum(len(o.token_ids) for o in self.output.outputs) if self.output else 0

    @property
    def num_prompt_tokens(self) -> int:
        """Tokens of its prompt, once the engine has answered."""
        return len(self.output.prompt_token_ids) if self.output else 0

    @property
    def num_cached_tokens(self) -> int:
        """Those of them that were found in the prefix cache."""
        return self.output.num_cached_tokens if self.output else 0

    @property
    def timing(self) -> RequestTiming:
        """Its times; those of the first completion where there are several (``n`` > 1)."""
        first = self.output.outputs[0] if self.output and self.output.outputs else None
        metrics = first.metrics if first else None
        return RequestTiming(
            scheduled_s=self.scheduled_s,
            dispatched_s=self.dispatched_s,
            started_s=metrics.first_scheduled_s if metrics else None,
            chunks=_chunks(first) if first else (),
            finished_s=metrics.finished_s if metrics else None,
            status=self.status,
        )

    @property
    def num_preemptions(self) -> int:
        """How often its completions lost their pages."""
        outputs = self.output.outputs if self.output else []
        return sum(o.metrics.num_preemptions for o in outputs if o.metrics)


@dataclass(slots=True)
class LoadResult:
    """A load run.

    Attributes:
        mode: How requests were sent.
        records: The measured requests, in order of schedule; none is ever left out.
        warmup: Requests sent before them, which no figure counts.
        start_s: Scheduled arrival of the first measured request, on the engine's clock.
        end_s: End of the last measured request (or of the run, where it was cut).
        step_log: The engine's steps from ``start_s`` on.
        was_cut: Whether ``max_duration_s`` ended the run.
        energy: What it used, where that was measured.
    """

    mode: LoadMode
    records: list[RequestRecord]
    warmup: list[RequestRecord]
    start_s: float
    end_s: float
    step_log: list[StepStats] = field(default_factory=list)
    was_cut: bool = False
    energy: RunEnergy | None = None

    @property
    def timings(self) -> list[RequestTiming]:
        """Times of the measured requests."""
        return [r.timing for r in self.records]

    @property
    def latency(self) -> LatencySummary:
        """Latencies of the completed requests."""
        return summarize_latency(self.timings)

    @property
    def outputs(self) -> list[RequestOutput]:
        """Answers of the measured requests that got one."""
        return [r.output for r in self.records if r.output is not None]

    @property
    def duration_s(self) -> float:
        """First scheduled arrival to last end."""
        return self.end_s - self.start_s

    @property
    def offered_rate_per_s(self) -> float | None:
        """Requests per second of the schedule (None: all at once, or a single request)."""
        if self.mode != "open-loop":
            return None
        return _rate([r.scheduled_s for r in self.records])

    @property
    def dispatched_rate_per_s(self) -> float | None:
        """Requests per second that were really sent."""
        return _rate([r.dispatched_s for r in self.records if r.dispatched_s is not None])

    @property
    def achieved_rate_per_s(self) -> float | None:
        """Requests per second that completed, from the first completion to the last."""
        done = [r for r in self.records if r.status == "completed"]
        return _rate([t for r in done if (t := r.timing.finished_s) is not None])

    @property
    def warnings(self) -> list[str]:
        """What a reader of the figures must know."""
        out = []
        if self.was_cut:
            out.append(f"the run was cut after {self.duration_s:.1f} s")
        offered, achieved = self.offered_rate_per_s, self.achieved_rate_per_s
        if offered is not None and (achieved or 0.0) < (1 - _RATE_TOLERANCE) * offered:
            out.append(
                f"offered {offered:.3g} requests/s, achieved {achieved or 0.0:.3g}: latencies are "
                "those of a growing queue and depend on the length of the run"
            )
        bad = {k: v for k, v in self.status_counts.items() if k != "completed" and v}
        if bad:
            parts = ", ".join(f"{count} {status}" for status, count in bad.items())
            out.append(f"without a latency: {parts} of {len(self.records)} requests")
        return out

    @property
    def status_counts(self) -> dict[RequestStatus, int]:
        """Number of measured requests by how they ended."""
        counts = Counter(r.status for r in self.records)
        kinds: tuple[RequestStatus, ...] = (
            "completed",
            "empty",
            "failed",
            "aborted",
            "unfinished",
        )
        return {kind: counts[kind] for kind in kinds}

    def evaluate(self, slo: SLO) -> SLOReport:
        """Judge the run by an objective."""
        return evaluate_slo(slo, self.timings, self.duration_s)

    def summary(self, slo: SLO | None = None) -> dict[str, Any]:
        """Return all figures as plain data, with units in their names.

        Args:
            slo: Adds ``slo`` (the limits) and ``goodput`` to the figures.
        """
        return {
            "mode": self.mode,
            "duration_s": self.duration_s,
            "num_requests": len(self.records),
            **{f"num_{status}": count for status, count in self.status_counts.items()},
            "num_warmup": len(self.warmup),
            **self._token_figures(),
            "request_rate_per_s": self._per_s(self.status_counts["completed"]),
            "offered_rate_per_s": self.offered_rate_per_s,
            "dispatched_rate_per_s": self.dispatched_rate_per_s,
            "achieved_rate_per_s": self.achieved_rate_per_s,
            "latency": self.latency.to_dict(),
            "num_preemptions": sum(r.num_preemptions for r in self.records),
            "num_steps": len(self.step_log),
            "slo": slo.to_dict() if slo else None,
            "goodput": self.evaluate(slo).to_dict() if slo else None,
            "was_cut": self.was_cut,
            "warnings": self.warnings,
            "errors": dict(Counter(r.error.partition(":")[0] for r in self.records if r.error)),
        }

    def _token_figures(self) -> dict[str, float | int | None]:
        # Nobody can use a broken answer: its tokens are work, but no throughput.
        num_output = sum(r.num_output_tokens for r in self.records if r.status != "failed")
        num_prompt = sum(r.num_prompt_tokens for r in self.records)
        num_cached = sum(r.num_cached_tokens for r in self.records)
        return {
            "num_output_tokens": num_output,
            "num_prompt_tokens": num_prompt,
            "num_cached_tokens": num_cached,
            "cache_hit_rate": num_cached / num_prompt if num_prompt else None,
            "throughput_tokens_per_s": self._per_s(num_output),
            "prompt_throughput_tokens_per_s": self._per_s(num_prompt),
        }

    def _per_s(self, count: int) -> float | None:
        return count / self.duration_s if self.duration_s > 0 else None


def _chunks(completion: CompletionOutput) -> tuple[Chunk, ...]:
    """Group tokens that became known at the same time."""
    times = completion.metrics.token_times_s if completion.metrics else []
    return tuple(Chunk(time, sum(1 for _ in group)) for time, group in groupby(times))


def _rate(times: Sequence[float]) -> float | None:
    """Return events per second between the first and the last event."""
    if len(times) < 2:
        return None
    span = max(times) - min(times)
    return (len(times) - 1) / span if span > 0 else None
