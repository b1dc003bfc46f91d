"""An imitation of the engine on a virtual clock, with service times that a test chooses."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest

from infopt.bench.workload_types import WorkloadRequest
from infopt.engine.clock import VirtualClock
from infopt.engine.stats import StepStats
from infopt.errors import QueueFullError
from infopt.outputs import CompletionOutput, RequestMetrics, RequestOutput
from infopt.sampling_params import SamplingParams

Plan = list[tuple[float, int]]
"""(seconds after the start of service, tokens that appear then); the last entry is the end."""


@dataclass
class _Job:
    output: RequestOutput
    plan: Plan
    started_s: float = 0.0
    num_done: int = 0

    @property
    def next_event_s(self) -> float:
        return self.started_s + self.plan[self.num_done][0]


@dataclass
class FakeEngine:
    """Serves requests as planned, ``num_workers`` at a time, first come first served.

    Not an engine: no model, no pages. It has the members that load generators drive. A step jumps
    to the next event, or by at most ``tick_s``, so that requests can arrive in between.
    """

    plan: Callable[[int], Plan]
    num_workers: int = 1
    tick_s: float | None = None
    max_num_waiting: int | None = None
    clock: VirtualClock = field(default_factory=VirtualClock)
    step_log: list[StepStats] | None = None
    num_cache_resets: int = 0
    num_added: int = 0
    waiting: deque[_Job] = field(default_factory=deque)
    running: list[_Job] = field(default_factory=list)
    ended: list[RequestOutput] = field(default_factory=list)
    params_seen: list[SamplingParams] = field(default_factory=list)

    @property
    def has_unfinished(self) -> bool:
        return bool(self.waiting or self.running or self.ended)

    def add_request(
        self,
        request_id: str,
        prompt: str | list[int],
        params: SamplingParams,
        *,
        arrival_s: float | None = None,
    ) -> None:
        if self.max_num_waiting is not None and len(self.waiting) >= self.max_num_waiting:
            raise QueueFullError(f"{len(self.waiting)} are waiting.", field="max_num_waiting")
        assert isinstance(prompt, list)
        self.params_seen.append(params)
        arrival = self.clock.now() if arrival_s is None else arrival_s
        completion = CompletionOutput(index=0, metrics=RequestMetrics(arrival_s=arrival))
        output = RequestOutput(request_id, None, prompt, [completion])
        self.waiting.append(_Job(output, self.plan(self.num_added)))
        self.num_added += 1

    def step(self) -> list[RequestOutput]:
        start_s = self.clock.now()
        changed, self.ended = self.ended, []
        while self.waiting and len(self.running) < self.num_workers:
            job = self.waiting.popleft()
            job.started_s = self.clock.now()
            job.output.metrics.first_scheduled_s = job.started_s
            self.running.append(job)
        if self.running:
            wait = min(job.next_event_s for job in self.running) - self.clock.now()
            self.clock.advance(wait if self.tick_s is None else min(wait, self.tick_s))
        changed += [job.output for job in list(self.running) if self._advance(job)]
        self._log(start_s)
        return changed

    def abort(self, request_id: str) -> bool:
        for job in [*self.waiting, *self.running]:
            if job.output.request_id == request_id:
                self._end(job, "abort")
                self.ended.append(job.output)
                return True
        return False

    def reset_prefix_cache(self) -> None:
        self.num_cache_resets += 1

    def _advance(self, job: _Job) -> bool:
        now, before = self.clock.now(), job.num_done
        completion = job.output.outputs[0]
        while job.num_done < len(job.plan) and job.next_event_s <= now + 1e-9:
            num_tokens = job.plan[job.num_done][1]
            completion.token_ids += list(range(num_tokens))
            completion.metrics.token_times_s += [now] * num_tokens
            if num_tokens and completion.metrics.first_token_s is None:
                completion.metrics.first_token_s = now
            job.num_done += 1
        if job.num_done == len(job.plan):
            self._end(job, "length")
        return job.num_done > before

    def _end(self, job: _Job, reason: str) -> None:
        job.output.outputs[0].finish_reason = reason
        job.output.metrics.finished_s = self.clock.now()
        job.output.finished = True
        if job in self.running:
            self.running.remove(job)
        if job in self.waiting:
            self.waiting.remove(job)

    def _log(self, start_s: float) -> None:
        if self.step_log is not None:
            values = dict.fromkeys(StepStats.__slots__, 0)
            values |= {"start_s": start_s, "duration_s": self.clock.now() - start_s}
            self.step_log.append(StepStats(**values))


@pytest.fixture(scope="session")
def fake_engine() -> type[FakeEngine]:
    """Class of the imitation engine."""
    return FakeEngine


@pytest.fixture
def make_requests() -> Callable[..., list[WorkloadRequest]]:
    """Factory of requests with given arrival times."""

    def make(arrivals: list[float], *, prompt_tokens: int = 4) -> list[WorkloadRequest]:
        return [
            WorkloadRequest(f"r{i}", t, list(range(1, prompt_tokens + 1)), 8)
            for i, t in enumerate(arrivals)
        ]

    return make


@pytest.fixture
def make_step() -> Callable[..., StepStats]:
    """Factory of step records; what is not given is 0."""

    def make(**values: float) -> StepStats:
        return StepStats(**(dict.fromkeys(StepStats.__slots__, 0) | values))

    return make
