"""`Soak`: sends the mix to a running server, looks for leaks, and compares a sample of answers."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from infopt.bench.raw_http import Address
from infopt.bench.server_process import read_metrics
from infopt.bench.soak_answers import Answer
from infopt.bench.soak_checks import check_reply
from infopt.bench.soak_clients import Reply, send_all
from infopt.bench.soak_leaks import grown, held, leaks
from infopt.bench.soak_mix import make_request
from infopt.bench.soak_request import MixOptions, SoakRequest

NUM_WARM = 200
"""After so many requests memory has its level."""

_DRAIN_S = 30.0


@dataclass(frozen=True, slots=True)
class SoakOptions:
    """What a soak does.

    Attributes:
        num_requests: How many requests of the mix are sent.
        concurrency: Clients at once.
        seed: Of the mix.
        num_greedy: Greedy answers that are computed again.
        num_seeded: Seeded answers that are computed again.
        mix: What the requests must know of the server.
    """

    num_requests: int = 2000
    concurrency: int = 32
    seed: int = 0
    num_greedy: int = 100
    num_seeded: int = 25
    mix: MixOptions = field(default_factory=MixOptions)


@dataclass(slots=True)
class SoakReport:
    """What was found.

    Attributes:
        faults: What does not hold, in words.
        kinds: Requests sent, by kind.
        statuses: Replies by status; "left" for clients that hung up.
        num_compared: Answers that were computed again.
        metrics: Of the server: before, after the first requests, and at the end.
        duration_s: Of the requests, without the comparison.
    """

    faults: list[str] = field(default_factory=list)
    kinds: Counter[str] = field(default_factory=Counter)
    statuses: Counter[str] = field(default_factory=Counter)
    num_compared: int = 0
    metrics: dict[str, dict[str, float]] = field(default_factory=dict)
    duration_s: float = 0.0


class Soak:
    """One soak of one server.

    Args:
        target: The server.
        options: What to do.
    """

    def __init__(self, target: Address, options: SoakOptions) -> None:
        """Start with nothing sent."""
        self.target, self.options = target, options
        self.report = SoakReport()
        self._answers: dict[int, Answer] = {}
        self._sample: list[SoakRequest] = []

    def run(self, reference: Address) -> SoakReport:
        """Send everything, look for leaks, and compare a sample with another server.

        Args:
            reference: A server on the same weights that computes alone and caches no prefix.
        """
        asyncio.run(self._run(reference))
        return self.report

    async def _run(self, reference: Address) -> None:
        options, report = self.options, self.report
        report.metrics["before"] = await read_metrics(self.target)
        start_s = time.monotonic()
        requests = [make_request(i, options.seed, options.mix) for i in range(options.num_requests)]
        num_warm = min(NUM_WARM, len(requests) // 2)
        await self._send("warming", requests[:num_warm])
        report.metrics["warm"] = await self._drained()
        await self._send("soaking", requests[num_warm:])
        report.metrics["after"] = await self._drained()
        report.duration_s = time.monotonic() - start_s
        report.faults += leaks(report.metrics)
        sample = self._chosen(requests)
        await self._compare("alone", reference, sample)
        await self._compare("again", self.target, sample)
        report.num_compared = len(sample)

    async def _send(self, name: str, requests: Sequence[SoakRequest]) -> None:
        from tqdm import tqdm

        with tqdm(requests, desc=name, unit="request", disable=None) as bar:

            def take(reply: Reply) -> None:
                bar.update()
                self._take(reply)

            concurrency = self.options.concurrency
            await send_all(self.target, requests, concurrency=concurrency, on_reply=take)

    def _take(self, reply: Reply) -> None:
        request, report = reply.request, self.report
        report.kinds[request.kind] += 1
        report.statuses["left" if reply.status is None else str(reply.status)] += 1
        faults = [reply.fault] if reply.fault is not None else []
        if reply.status is not None:
            answer, faults = check_reply(request, reply.status, reply.body)
            if answer is not None:
                self._answers[request.index] = answer
        report.faults += [_named(request, fault) for fault in faults]

    async def _drained(self) -> dict[str, float]:
        """Wait until the server has nothing to do and return its metrics, leaks or not."""
        deadline_s = time.monotonic() + _DRAIN_S
        while True:
            metrics = await read_metrics(self.target)
            before = self.report.metrics["before"]
            is_clean = not [*held(metrics), *grown(before, metrics)]
            if is_clean or time.monotonic() > deadline_s:
                return metrics
            await asyncio.sleep(0.05)

    def _chosen(self, requests: Sequence[SoakRequest]) -> list[SoakRequest]:
        """Return the last requests of the mix that can be repeated: they met a used server."""
        known = [r for r in requests if r.is_repeatable and r.index in self._answers]
        greedy = [r for r in known if r.is_greedy][-self.options.num_greedy :]
        seeded = [r for r in known if not r.is_greedy][-self.options.num_seeded :]
        return greedy + seeded

    async def _compare(self, name: str, server: Address, sample: Sequence[SoakRequest]) -> None:
        """Send a sample one by one; answers must be those of the soak, to the bit."""
        from tqdm import tqdm

        with tqdm(sample, desc=name, unit="request", disable=None) as bar:

            def take(reply: Reply) -> None:
                bar.update()
                self.report.faults += [
                    _named(reply.request, f"{name}: {fault}") for fault in self._differs(reply)
                ]

            await send_all(server, sample, concurrency=1, on_reply=take)

    def _differs(self, reply: Reply) -> list[str]:
        if reply.status is None:
            return [reply.fault or "no answer"]
        answer, faults = check_reply(reply.request, reply.status, reply.body)
        if answer is None:
            return faults
        expected = self._answers[reply.request.index].comparable()
        if answer.comparable() == expected:
            return faults
        return [*faults, f"{answer.comparable()} instead of {expected}"]


def _named(request: SoakRequest, fault: str) -> str:
    return f"request {request.index} ({request.kind}): {fault}"
