"""Sends one request and reads its stream."""

from __future__ import annotations

import asyncio
import json

import httpx

from infopt.bench.http.answer import StreamedAnswer
from infopt.bench.http.failures import RequestFailedError, error_text
from infopt.bench.http.load import HttpLoad
from infopt.bench.http.sse import EventParser

_KEEPALIVE_S = 2.0
"""Idle connections are let go of before servers do it (5 s is common): a request that meets a
closing connection would fail through no fault of the server."""

_TAIL_S = 1.0
"""After [DONE], how long to wait for the end of the body, without which a connection is lost."""


class HttpClient:
    """Sends requests over as many connections as it takes.

    Args:
        load: How to ask.
        transport: Replaces the network (tests do).
    """

    def __init__(self, load: HttpLoad, transport: httpx.AsyncBaseTransport | None = None) -> None:
        """Open no connection yet."""
        self._load = load
        limits = httpx.Limits(
            max_connections=None, max_keepalive_connections=None, keepalive_expiry=_KEEPALIVE_S
        )
        headers = load.target.headers | {
            "Accept": "text/event-stream",
            "Accept-Encoding": "identity",  # a compressor would hold events back
        }
        self._http = httpx.AsyncClient(
            headers=headers, timeout=None, limits=limits, transport=transport, trust_env=False
        )

    async def aclose(self) -> None:
        """Close all connections."""
        await self._http.aclose()

    async def send(self, body: bytes, answer: StreamedAnswer) -> None:
        """Send a request and fill ``answer`` while it comes.

        Raises:
            RequestFailedError: There is no whole answer; what came before is in ``answer``.
        """
        try:
            async with asyncio.timeout(self._load.timeout_s) as limit:
                await self._stream(body, answer, limit)
        except TimeoutError:
            if not answer.is_done:
                raise RequestFailedError(
                    "timeout", f"not finished after {self._load.timeout_s:g} s"
                ) from None
        except (httpx.HTTPError, httpx.StreamError) as error:
            if not answer.is_done:
                text = error_text(str(error) or type(error).__name__)
                raise RequestFailedError("connection", text) from error
        if not answer.is_done:
            raise RequestFailedError("no [DONE]", "the stream ended before it was complete")

    async def _stream(self, body: bytes, answer: StreamedAnswer, limit: asyncio.Timeout) -> None:
        clock, parser = asyncio.get_running_loop(), EventParser()
        async with self._http.stream("POST", self._load.url, content=body) as response:
            await _check(response)
            async for data in response.aiter_bytes():
                # Stamped before it is parsed: everything in one piece of the network came now.
                now_s = clock.time()
                for event in parser.feed(data):
                    answer.read(event, now_s)
                if answer.finished_s == now_s:
                    limit.reschedule(now_s + _TAIL_S)


async def _check(response: httpx.Response) -> None:
    """Refuse an answer that is no stream of events."""
    if response.status_code != httpx.codes.OK:
        text = _message(await response.aread())
        raise RequestFailedError("HTTP status", text, status=response.status_code)
    kind = response.headers.get("content-type", "")
    if not kind.startswith("text/event-stream"):
        raise RequestFailedError("malformed stream", f"the answer is {kind or 'of no type'}")


def _message(body: bytes) -> str:
    try:
        document = json.loads(body)
    except ValueError:
        return error_text(body.decode("utf-8", errors="replace"))
    found = document.get("error", document) if isinstance(document, dict) else document
    return error_text(found)
