"""JSON answers and server-sent events, written so that no text can make them fail."""

from __future__ import annotations

import json
import logging
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any

from starlette.responses import Response, StreamingResponse
from starlette.types import Receive, Scope, Send

logger = logging.getLogger(__name__)

DONE = b"data: [DONE]\n\n"
"""The last event of a stream that ended well."""


# Made once: `json.dumps` with options makes a new one for every call.
_ENCODER = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":"))


def to_json(data: Any) -> bytes:
    """Return compact UTF-8 JSON; NaN and infinities are a bug and raise."""
    return _ENCODER.encode(data).encode("utf-8", "replace")


def event(data: Any) -> bytes:
    """Return one server-sent event."""
    return b"data: " + to_json(data) + b"\n\n"


class ChunkWriter:
    """Writes the events of one stream, which differ in their choices alone.

    Args:
        head: Fields in front of the choices, at least one.
        tail: Fields behind them.
    """

    def __init__(self, head: Mapping[str, Any], tail: Mapping[str, Any]) -> None:
        """Encode what all events have in common, once."""
        self._start = b"data: " + to_json(head)[:-1] + b',"choices":['
        self._end = (b"]," + to_json(tail)[1:] if tail else b"]}") + b"\n\n"

    def write(self, choice: Any) -> bytes:
        """Return the event with one choice."""
        return self._start + to_json(choice) + self._end


def json_response(
    data: Any, status: int = 200, headers: Mapping[str, str] | None = None
) -> Response:
    """Return a JSON answer."""
    return Response(to_json(data), status, headers, media_type="application/json")


class EventStreamResponse(StreamingResponse):
    """Server-sent events, with something to do when they end in whatever way.

    Args:
        events: Encoded events.
        on_close: Called once, also when the client hangs up.
        headers: Further headers.
    """

    def __init__(
        self,
        events: AsyncIterator[bytes],
        on_close: Callable[[], None],
        headers: Mapping[str, str],
    ) -> None:
        """Answer with 200; errors that come later travel as events."""
        own = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}
        super().__init__(events, headers=own | dict(headers), media_type="text/event-stream")
        self._on_close = on_close

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the events."""
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._on_close()
