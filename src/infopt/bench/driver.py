"""The loop that all load generators share: hand over, step, wait, on one thread and one clock.

An engine is driven through six members: ``add_request``, ``step``, ``abort``, ``has_unfinished``,
``clock`` and ``step_log``. Tests drive a small imitation through the same six.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Protocol

from infopt.bench.load_result import LoadMode, LoadResult, RequestRecord
from infopt.bench.workload_types import WorkloadRequest
from infopt.engine.clock import Clock
from infopt.engine.stats import StepStats
from infopt.errors import InfoptError, WorkloadError
from infopt.outputs import RequestOutput
from infopt.sampling_params import SamplingParams

DEFAULT_PARAMS = SamplingParams(temperature=0, ignore_eos=True)
"""Greedy, and as many tokens as the workload says: load runs must do the same work every time."""


class DrivenEngine(Protocol):
    """What a load generator needs of an engine."""

    clock: Clock
    step_log: list[StepStats] | None

    @property
    def has_unfinished(self) -> bool:
        """Whether a step would have something to do."""
        ...

    def add_request(
        self,
        request_id: str,
        prompt: str | list[int],
        params: SamplingParams,
        *,
        arrival_s: float | None = None,
    ) -> Any:
        """Queue a request."""
        ...

    def step(self) -> list[RequestOutput]:
        """Do one step; return the requests that changed."""
        ...

    def abort(self, request_id: str) -> bool:
        """End a request early."""
        ...

    def reset_prefix_cache(self) -> Any:
        """Forget all cached prefixes."""
        ...


def engine_of(llm_or_engine: Any) -> DrivenEngine:
    """Return the engine of an ``LLM``, or the engine itself."""
    return getattr(llm_or_engine, "engine", llm_or_engine)


class LoadDriver:
    """Sends the requests of one run and keeps their records.

    Args:
        engine: The engine to drive.
        params: Sampling parameters of all requests; ``max_tokens`` comes from each request.
        max_duration_s: Guard: what is unfinished then is aborted and counted as such.
    """

    def __init__(
        self, engine: DrivenEngine, params: SamplingParams | None, max_duration_s: float
    ) -> None:
        """Start the run's clock."""
        self.engine = engine
        self.clock = engine.clock
        self.params = params or DEFAULT_PARAMS
        self.origin_s = self.clock.now()
        self.deadline_s = self.origin_s + max_duration_s
        self.records: dict[str, RequestRecord] = {}
        self.in_flight: set[str] = set()
        self.was_cut = False

    @contextmanager
    def session(self) -> Iterator[list[StepStats]]:
        """Record the engine's steps; a run that breaks off leaves no request behind.

        A step log that was on before gets the steps as well.
        """
        log_before = self.engine.step_log
        steps: list[StepStats] = []
        self.engine.step_log = steps
        try:
            yield steps
        except BaseException:
            for request_id in self.in_flight:
                self.engine.abort(request_id)
            raise
        finally:
            if log_before is not None:
                log_before.extend(steps)
            self.engine.step_log = log_before

    def dispatch(self, request: WorkloadRequest, scheduled_s: float) -> None:
        """Hand a request to the engine; a refusal is recorded, not raised."""
        record = RequestRecord(request, scheduled_s, dispatched_s=self.clock.now())
        self.records[request.request_id] = record
        try:
            self.engine.add_request(
                request.request_id,
                request.prompt_token_ids,
                self.params.replace(max_tokens=request.max_tokens),
                arrival_s=scheduled_s,
            )
        except InfoptError as error:
            record.error = f"{type(error).__name__}: {error.message}"
        else:
            self.in_flight.add(request.request_id)

    def step(self) -> None:
        """Let the engine do one step and note what it returns.

        A request that an idle engine still owes is recorded as failed: waiting for it would never
        end.
        """
        for output in self.engine.step():
            record = self.records.get(output.request_id)
            if record is None:
                continue  # a request of somebody else
            record.output = output
            if output.finished:
                self.in_flight.discard(output.request_id)
        if not self.engine.has_unfinished:
            for request_id in self.in_flight:
                self.records[request_id].error = "the engine became idle without finishing it"
            self.in_flight.clear()

    def must_stop(self) -> bool:
        """Tell whether the run has used up its time; ends it if so."""
        if self.clock.now() < self.deadline_s:
            return False
        self.was_cut = True
        for request_id in self.in_flight:
            self.engine.abort(request_id)
            self.records[request_id].was_cut = True
        if self.in_flight:
            self.step()  # reports the aborted ones, and so frees their ids
        self.in_flight.clear()
        return True

    def skip(self, requests: Sequence[WorkloadRequest]) -> None:
        """Record requests that the end of the run left unsent."""
        for request in requests:
            scheduled_s = self.origin_s + request.arrival_s
            self.records[request.request_id] = RequestRecord(request, scheduled_s, was_cut=True)

    def result(self, mode: LoadMode, num_warmup: int, step_log: list[StepStats]) -> LoadResult:
        """Build the result; the first ``num_warmup`` requests are warm-up.

        Args:
            mode: How requests were sent.
            num_warmup: Requests at the head of the schedule that no figure counts.
            step_log: All steps of the run.
        """
        records = list(self.records.values())
        warmup, measured = records[:num_warmup], records[num_warmup:]
        start_s = measured[0].scheduled_s if measured else self.clock.now()
        ends = [t for r in measured if (t := r.timing.finished_s) is not None]
        end_s = self.clock.now() if self.was_cut or not ends else max(ends)
        return LoadResult(
            mode=mode,
            records=measured,
            warmup=warmup,
            start_s=start_s,
            end_s=max(end_s, start_s),
            step_log=[s for s in step_log if start_s <= s.start_s <= end_s],
            was_cut=self.was_cut,
        )


def check_requests(requests: Sequence[WorkloadRequest], num_warmup: int) -> None:
    """Refuse what cannot be run: nothing to measure, repeated ids, arrivals out of order.

    Raises:
        WorkloadError: Names the offending request.
    """
    if num_warmup >= len(requests):
        raise WorkloadError(
            f"Nothing is left to measure: {num_warmup} of {len(requests)} requests are warm-up.",
            field="warmup",
            value=num_warmup,
        )
    seen: set[str] = set()
    for index, request in enumerate(requests):
        if request.request_id in seen:
            raise WorkloadError(
                f"Two requests are called {request.request_id!r}.",
                field="request_id",
                value=request.request_id,
            )
        seen.add(request.request_id)
        if index and request.arrival_s < requests[index - 1].arrival_s:
            raise WorkloadError(
                f"Request {request.request_id!r} arrives at {request.arrival_s} s, before the one "
                "in front of it.",
                field="arrival_s",
                value=request.arrival_s,
                remedy="Sort the requests by arrival_s.",
            )
