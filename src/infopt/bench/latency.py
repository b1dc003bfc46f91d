"""Latencies of requests, from the moment they were *scheduled* to arrive.

A generator that is late, or a server that lets requests queue, must not make latencies look
shorter (coordinated omission), so the headline figures count from the schedule; figures from the
moment of sending are kept beside them. The vocabulary:

* TTFT: to the first token of any kind (content, reasoning or tool call).
* TPOT: (last - first token) / (tokens - 1) of one request; None for one-token answers.
* ITL: gap between neighbouring tokens. Tokens of one chunk share its gap equally; gaps between
  chunks are kept apart as ``itl_chunk``. The mean of a request's ITLs is its TPOT.
* E2E: to the end of the answer. Queue: to the first step that worked on the request.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

from infopt.bench.stats import Percentiles, percentiles

RequestStatus = Literal["completed", "empty", "failed", "aborted", "unfinished"]


@dataclass(frozen=True, slots=True)
class Chunk:
    """Tokens that became visible at the same time.

    Attributes:
        time_s: When.
        num_tokens: How many (0: a chunk without tokens, such as a role or a keep-alive).
        is_content: False for reasoning and tool-call tokens.
    """

    time_s: float
    num_tokens: int
    is_content: bool = True


@dataclass(frozen=True, slots=True)
class RequestTiming:
    """When things happened to one request, all on one clock in seconds.

    Attributes:
        scheduled_s: When it was due.
        dispatched_s: When it was handed over (None: never).
        started_s: When work on it began (None: unknown or never).
        chunks: What came back, in order.
        finished_s: When the answer ended (None: it did not).
        status: Only ``completed`` requests have latencies. ``empty``: ended without a token;
            ``failed``: refused or broken; ``aborted``: by the caller; ``unfinished``: cut by the
            end of the run.
        num_reported_tokens: Token count by the server, where chunks do not carry it.
    """

    scheduled_s: float
    dispatched_s: float | None = None
    started_s: float | None = None
    chunks: tuple[Chunk, ...] = ()
    finished_s: float | None = None
    status: RequestStatus = "completed"
    num_reported_tokens: int | None = None

    @property
    def num_output_tokens(self) -> int:
        """Output tokens, by the server's count where it gave one."""
        if self.num_reported_tokens is not None:
            return self.num_reported_tokens
        return sum(c.num_tokens for c in self.chunks)

    @property
    def token_chunks(self) -> list[Chunk]:
        """Chunks that hold tokens."""
        return [c for c in self.chunks if c.num_tokens > 0]

    @property
    def ttft_s(self) -> float | None:
        """Scheduled arrival to first token."""
        chunks = self.token_chunks
        return chunks[0].time_s - self.scheduled_s if chunks else None

    @property
    def ttft_from_dispatch_s(self) -> float | None:
        """Sending to first token."""
        chunks = self.token_chunks
        if not chunks or self.dispatched_s is None:
            return None
        return chunks[0].time_s - self.dispatched_s

    @property
    def first_content_s(self) -> float | None:
        """Scheduled arrival to the first token that is neither reasoning nor a tool call."""
        return next((c.time_s - self.scheduled_s for c in self.token_chunks if c.is_content), None)

    @property
    def e2e_s(self) -> float | None:
        """Scheduled arrival to the end."""
        return None if self.finished_s is None else self.finished_s - self.scheduled_s

    @property
    def e2e_from_dispatch_s(self) -> float | None:
        """Sending to the end."""
        if self.finished_s is None or self.dispatched_s is None:
            return None
        return self.finished_s - self.dispatched_s

    @property
    def queue_s(self) -> float | None:
        """Scheduled arrival to the first step that worked on it."""
        return None if self.started_s is None else self.started_s - self.scheduled_s

    @property
    def tpot_s(self) -> float | None:
        """Mean time per token after the first; None for answers of one token."""
        chunks = self.token_chunks
        if not chunks or self.num_output_tokens < 2:
            return None
        return (chunks[-1].time_s - chunks[0].time_s) / (self.num_output_tokens - 1)

    @property
    def itl_chunk_s(self) -> list[float]:
        """Gaps between neighbouring chunks with tokens."""
        chunks = self.token_chunks
        return [b.time_s - a.time_s for a, b in pairwise(chunks)]

    @property
    def itl_s(self) -> list[float]:
        """One gap per token after the first: a chunk's gap is shared by its tokens."""
        chunks = self.token_chunks
        if not chunks:
            return []
        gaps = [0.0] * (chunks[0].num_tokens - 1)
        for gap, chunk in zip(self.itl_chunk_s, chunks[1:], strict=True):
            gaps += [gap / chunk.num_tokens] * chunk.num_tokens
        return gaps


@dataclass(frozen=True, slots=True)
class LatencySummary:
    """Percentiles over the completed requests, in seconds.

    Attributes:
        ttft: To the first token, from the schedule.
        tpot: Per output token after the first (answers of one token have none).
        itl: Gaps between tokens, all requests together.
        itl_chunk: Gaps between chunks, all requests together.
        e2e: To the end, from the schedule.
        queue: To the first step of work, from the schedule.
        ttft_from_dispatch: To the first token, from sending.
        e2e_from_dispatch: To the end, from sending.
    """

    ttft: Percentiles
    tpot: Percentiles
    itl: Percentiles
    itl_chunk: Percentiles
    e2e: Percentiles
    queue: Percentiles
    ttft_from_dispatch: Percentiles
    e2e_from_dispatch: Percentiles

    def to_dict(self) -> dict[str, dict[str, float | int | None]]:
        """Return plain data with the unit in the names (``ttft_s``, ...)."""
        return {f"{name}_s": getattr(self, name).to_dict() for name in self.__slots__}


def summarize_latency(timings: Sequence[RequestTiming]) -> LatencySummary:
    """Summarise completed requests; others have no latency and are counted elsewhere."""
    done = [t for t in timings if t.status == "completed"]

    def over_requests(get: Callable[[RequestTiming], float | None]) -> Percentiles:
        return percentiles([v for v in map(get, done) if v is not None])

    return LatencySummary(
        ttft=over_requests(lambda t: t.ttft_s),
        tpot=over_requests(lambda t: t.tpot_s),
        itl=percentiles([gap for t in done for gap in t.itl_s]),
        itl_chunk=percentiles([gap for t in done for gap in t.itl_chunk_s]),
        e2e=over_requests(lambda t: t.e2e_s),
        queue=over_requests(lambda t: t.queue_s),
        ttft_from_dispatch=over_requests(lambda t: t.ttft_from_dispatch_s),
        e2e_from_dispatch=over_requests(lambda t: t.e2e_from_dispatch_s),
    )
