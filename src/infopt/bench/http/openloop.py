"""Sends a schedule to a server: each request leaves when it is due, whatever the others do.

One event loop sends and reads everything; its clock stamps everything. What costs time (bodies,
counting tokens) is done before and after the run.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, TypeVar

import httpx

from infopt.bench.driver import check_requests
from infopt.bench.http.answer import StreamedAnswer
from infopt.bench.http.client import HttpClient
from infopt.bench.http.failures import RequestFailedError
from infopt.bench.http.load import HttpLoad
from infopt.bench.http.record import HttpRecord
from infopt.bench.http.result import HttpLoadResult
from infopt.bench.http.token_counts import TokenCounter
from infopt.bench.workload_types import WorkloadRequest
from infopt.errors import MeasurementError

T = TypeVar("T")

_LEAD_S = 0.02
"""Between the start of the run and its first arrival, so that this one is not late already."""


@dataclass(slots=True)
class Progress:
    """Where a run stands.

    Attributes:
        num_total: Requests of the schedule.
        num_sent: Those that left.
        num_finished: Those that ended well.
        num_failed: Those that did not.
        elapsed_s: Time since the first arrival was due.
    """

    num_total: int
    num_sent: int = 0
    num_finished: int = 0
    num_failed: int = 0
    elapsed_s: float = 0.0

    @property
    def num_in_flight(self) -> int:
        """Those on their way."""
        return self.num_sent - self.num_finished - self.num_failed


def run_http_load(
    load: HttpLoad,
    requests: Sequence[WorkloadRequest],
    *,
    warmup: Sequence[WorkloadRequest] = (),
    max_duration_s: float | None = None,
    on_progress: Callable[[Progress], None] = lambda _: None,
    transport: httpx.AsyncBaseTransport | None = None,
) -> HttpLoadResult:
    """Send requests at their scheduled times and measure from those times.

    Args:
        load: Whom to ask, and how.
        requests: In order of arrival.
        warmup: Sent at once and answered before the schedule begins; no figure counts them.
        max_duration_s: Guard: what is unfinished then is cut and counted as such (None: the last
            arrival plus the time-out of a request and of those before it).
        on_progress: Called when a request leaves and when it ends.
        transport: Replaces the network (tests do).

    Returns:
        Records of all requests, failed ones included.

    Raises:
        WorkloadError: Nothing to measure, repeated request ids, or arrivals out of order.
        MeasurementError: No warm-up request was answered.
    """
    check_requests(requests, 0)
    run = OpenLoop(load, max_duration_s, on_progress, transport)
    return run_async(run.measure(requests, warmup))


def run_async(work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine to its end, also where an event loop runs already (as in a notebook)."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(work)
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(asyncio.run, work).result()


class OpenLoop:
    """One run.

    Args:
        load: Whom to ask, and how.
        max_duration_s: Guard.
        on_progress: Called when a request leaves and when it ends.
        transport: Replaces the network.
    """

    def __init__(
        self,
        load: HttpLoad,
        max_duration_s: float | None,
        on_progress: Callable[[Progress], None],
        transport: httpx.AsyncBaseTransport | None,
    ) -> None:
        """Prepare; `measure` runs."""
        self._load, self._max_duration_s = load, max_duration_s
        self._on_progress, self._transport = on_progress, transport
        self._progress = Progress(0)
        self._origin_s = 0.0

    async def measure(
        self, requests: Sequence[WorkloadRequest], warmup: Sequence[WorkloadRequest]
    ) -> HttpLoadResult:
        """Warm up, run the schedule, count the tokens."""
        counter = _counter(self._load)
        client = HttpClient(self._load, self._transport)
        async with contextlib.aclosing(client):
            before = await self._warm_up(client, warmup)
            bodies = [self._load.body(r) for r in requests]
            records, end_s, was_cut = await self._run(client, requests, bodies)
        for record in (*before, *records):
            record.settle(counter)
        return HttpLoadResult(
            mode="open-loop",
            records=[*records],
            warmup=[*before],
            start_s=records[0].scheduled_s,
            end_s=max(end_s, records[0].scheduled_s),
            was_cut=was_cut,
            client=self._load.describe(),
        )

    async def _warm_up(
        self, client: HttpClient, warmup: Sequence[WorkloadRequest]
    ) -> list[HttpRecord]:
        if not warmup:
            return []
        at_once = [
            WorkloadRequest(r.request_id, 0.0, r.prompt_token_ids, r.max_tokens) for r in warmup
        ]
        records, _, _ = await self._run(client, at_once, [self._load.body(r) for r in at_once])
        if all(r.error is not None for r in records):
            raise MeasurementError(
                f"No warm-up request was answered. The first: {records[0].error}",
                field="warmup",
                value=len(records),
                remedy="Try a single request by hand; endpoint, model and key must be right.",
            )
        return records

    async def _run(
        self, client: HttpClient, requests: Sequence[WorkloadRequest], bodies: Sequence[bytes]
    ) -> tuple[list[HttpRecord], float, bool]:
        """Run a schedule; return the records, the end of the last one, and if it was cut."""
        clock = asyncio.get_running_loop()
        self._origin_s = clock.time() + _LEAD_S
        self._progress = Progress(len(requests))
        records = [HttpRecord(r, self._origin_s + r.arrival_s) for r in requests]
        was_cut = False
        try:
            async with asyncio.timeout_at(self._deadline_s(requests)):
                await self._send_all(client, records, bodies)
        except TimeoutError:
            was_cut = True
            for record in records:
                record.was_cut = record.error is None and not _is_done(record)
        ends = [r.answer.finished_s for r in records if r.answer and r.answer.finished_s]
        end_s = max(ends) if ends and not was_cut else clock.time()
        return records, end_s, was_cut

    async def _send_all(
        self, client: HttpClient, records: Sequence[HttpRecord], bodies: Sequence[bytes]
    ) -> None:
        clock, limit = asyncio.get_running_loop(), self._load.max_concurrency
        slots = asyncio.Semaphore(limit) if limit is not None else contextlib.nullcontext()
        async with asyncio.TaskGroup() as group:
            for record, body in zip(records, bodies, strict=True):
                if (wait_s := record.scheduled_s - clock.time()) > 0:
                    await asyncio.sleep(wait_s)
                record.ready_s = clock.time()
                group.create_task(self._send(client, record, body, slots))

    async def _send(
        self,
        client: HttpClient,
        record: HttpRecord,
        body: bytes,
        slots: contextlib.AbstractAsyncContextManager[Any],
    ) -> None:
        async with slots:  # whose queue is first come, first served
            record.dispatched_s = asyncio.get_running_loop().time()
            self._report(num_sent=1)
            record.answer = StreamedAnswer()
            try:
                await client.send(body, record.answer)
            except RequestFailedError as failure:
                record.fail(failure)
            self._report(num_finished=int(record.error is None), num_failed=int(bool(record.error)))

    def _report(self, **counts: int) -> None:
        for name, count in counts.items():
            setattr(self._progress, name, getattr(self._progress, name) + count)
        self._progress.elapsed_s = asyncio.get_running_loop().time() - self._origin_s
        self._on_progress(self._progress)

    def _deadline_s(self, requests: Sequence[WorkloadRequest]) -> float:
        if self._max_duration_s is not None:
            return self._origin_s + self._max_duration_s
        # Each connection may have to wait for the time-out of every request before this one.
        rounds = -(-len(requests) // (self._load.max_concurrency or len(requests)))
        return self._origin_s + requests[-1].arrival_s + rounds * self._load.timeout_s + _LEAD_S


def _is_done(record: HttpRecord) -> bool:
    return record.answer is not None and record.answer.is_done


def _counter(load: HttpLoad) -> TokenCounter | None:
    """Return what counts tokens of a text (a server's own tokenizer is not asked per piece)."""
    tokenizer = load.target.tokenizer
    if tokenizer is None or load.target.tokenizer_source != "given":
        return None
    return lambda text: len(tokenizer.encode(text, add_special_tokens=False))
