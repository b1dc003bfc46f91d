"""`HttpLoadResult`: a load run over HTTP, with what only the client can know."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from infopt.bench.http.record import HttpRecord
from infopt.bench.load_result import LoadResult
from infopt.bench.slo import SLO
from infopt.bench.stats import percentiles

_LATE_S = 0.01
_LATE_SHARE = 0.1
"""The client is called late if its slowest hundredth of requests (the slowest, of fewer than 100)
left later than both of these: seconds, and share of the median time to first token."""


@dataclass
class HttpLoadResult(LoadResult):
    """A `LoadResult` whose records are `HttpRecord`s.

    Attributes:
        client: How requests were put (`HttpLoad.describe`).
    """

    client: Mapping[str, Any] = field(default_factory=dict)

    @property
    def http_records(self) -> list[HttpRecord]:
        """The measured requests."""
        return [r for r in self.records if isinstance(r, HttpRecord)]

    @property
    def lags_s(self) -> list[float]:
        """How much later than due the client turned to each request."""
        return [r.ready_s - r.scheduled_s for r in self.http_records if r.ready_s is not None]

    @property
    def waits_s(self) -> list[float]:
        """How long each request waited in the client for one of its connections."""
        return [
            r.dispatched_s - r.ready_s
            for r in self.http_records
            if r.dispatched_s is not None and r.ready_s is not None
        ]

    @property
    def warnings(self) -> list[str]:
        """What a reader of the figures must know."""
        return [*super().warnings, *self._client_warnings()]

    def summary(self, slo: SLO | None = None) -> dict[str, Any]:
        """Return all figures as plain data; what happens inside the server is null."""
        return super().summary(slo) | {
            "transport": "http",
            "num_steps": None,
            "num_preemptions": None,
            "client": self.client_figures(),
        }

    def client_figures(self) -> dict[str, Any]:
        """Return how requests were put, how late they were, and who counted."""
        done = self._completed
        contents_s = [t for r in done if (t := r.timing.first_content_s) is not None]
        return {
            **self.client,
            "lag_s": percentiles(self.lags_s).to_dict(),
            "max_lag_s": max(self.lags_s, default=None),
            "wait_s": percentiles(self.waits_s).to_dict(),
            "first_content_s": percentiles(contents_s).to_dict(),
            "token_counts": dict(Counter(r.count_source for r in done)),
            "num_estimated_chunks": sum(not r.counted.is_split_exact for r in done),
            "num_asked_tokens": sum(r.request.max_tokens for r in done),
            "num_got_tokens": sum(r.num_output_tokens for r in done),
            "num_short_answers": sum(r.num_output_tokens < r.request.max_tokens for r in done),
        }

    @property
    def _completed(self) -> list[HttpRecord]:
        return [r for r in self.http_records if r.status == "completed"]

    def _client_warnings(self) -> list[str]:
        found = [self._late(), self._queued(), self._short(), self._uncounted()]
        return [text for text in found if text is not None]

    def _late(self) -> str | None:
        lags = sorted(self.lags_s)
        if not lags:
            return None
        slow_s = lags[-1 - len(lags) // 100]
        ttft_s = self.latency.ttft.p50
        if slow_s <= max(_LATE_S, _LATE_SHARE * (ttft_s or 0.0)):
            return None
        return (
            f"the client itself was late, by up to {lags[-1] * 1e3:.0f} ms, which the latencies "
            "contain: give it a processor of its own"
        )

    def _queued(self) -> str | None:
        num_waiting = sum(wait > _LATE_S for wait in self.waits_s)
        if not num_waiting:
            return None
        return (
            f"{num_waiting} of {len(self.records)} requests waited in the client for one of its "
            f"{self.client.get('max_concurrency')} connections; their latencies count the wait"
        )

    def _short(self) -> str | None:
        figures = self.client_figures()
        asked, got = figures["num_asked_tokens"], figures["num_got_tokens"]
        if asked == got:
            return None
        return (
            f"{got} output tokens came where {asked} were asked for "
            f"({figures['num_short_answers']} of {len(self._completed)} answers ended early): "
            "runs compare only where lengths do"
        )

    def _uncounted(self) -> str | None:
        counts = Counter(r.count_source for r in self._completed)
        words = {
            "tokenizer": "the tokenizer counted the text",
            "pieces": "each piece counts as one token, which it need not be",
        }
        parts = [f"for {counts[k]} answers {text}" for k, text in words.items() if counts[k]]
        if not parts:
            return None
        return f"the server gave no token counts: {', '.join(parts)}"
