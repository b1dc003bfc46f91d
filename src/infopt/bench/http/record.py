"""`HttpRecord`: one request that went over HTTP."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from infopt.bench.http.answer import StreamedAnswer
from infopt.bench.http.failures import RequestFailedError
from infopt.bench.http.token_counts import CountedAnswer, CountSource, TokenCounter, count_answer
from infopt.bench.latency import RequestStatus, RequestTiming
from infopt.bench.load_result import RequestRecord

_NOTHING = CountedAnswer((), 0, "usage", True)


@dataclass(slots=True)
class HttpRecord(RequestRecord):
    """A `RequestRecord` whose answer came as a stream of events.

    All times are in seconds on the client's clock.

    Attributes:
        ready_s: When the client turned to it (later than ``scheduled_s``: the client was late).
        answer: What came, whole or not.
        counted: The same in tokens.
        failure: Why there is no whole answer.
    """

    ready_s: float | None = None
    answer: StreamedAnswer | None = None
    counted: CountedAnswer = _NOTHING
    failure: RequestFailedError | None = None

    def fail(self, failure: RequestFailedError) -> None:
        """Note why it failed."""
        self.failure = failure
        self.error = f"{failure.label}: {failure.message}"

    def settle(self, counter: TokenCounter | None) -> None:
        """Count the tokens, after the run: counting takes time that the client needs to send."""
        if self.answer is None:
            return
        self.counted = count_answer(self.answer, counter)
        if self.failure is None and self.answer.is_done and not self.num_output_tokens:
            self.fail(RequestFailedError("no token", "the answer ended without a token"))

    @property
    def status(self) -> RequestStatus:
        """How it ended."""
        if self.failure is not None:
            return "empty" if self.failure.kind == "no token" else "failed"
        if self.answer is not None and self.answer.is_done:
            return "completed"
        return "unfinished"

    @property
    def num_output_tokens(self) -> int:
        """Tokens that came, also where the answer is not whole."""
        return self.counted.num_tokens

    @property
    def num_prompt_tokens(self) -> int:
        """Prompt tokens by the server's count, else as many as the workload made."""
        reported = self._usage.get("prompt_tokens")
        if isinstance(reported, int):
            return reported
        return len(self.request.prompt_token_ids) if self.status == "completed" else 0

    @property
    def num_cached_tokens(self) -> int:
        """Prompt tokens that the server found in its prefix cache (0 where it does not say)."""
        details = self._usage.get("prompt_tokens_details")
        found = details.get("cached_tokens") if isinstance(details, Mapping) else None
        return found if isinstance(found, int) else 0

    @property
    def count_source(self) -> CountSource:
        """Who counted the output tokens."""
        return self.counted.source

    @property
    def timing(self) -> RequestTiming:
        """Its times; the server does not say when it began to work."""
        return RequestTiming(
            scheduled_s=self.scheduled_s,
            dispatched_s=self.dispatched_s,
            chunks=self.counted.chunks,
            finished_s=self.answer.finished_s if self.answer else None,
            status=self.status,
            num_reported_tokens=self.counted.num_tokens,
        )

    @property
    def _usage(self) -> Mapping[str, Any]:
        return (self.answer.usage if self.answer else None) or {}
