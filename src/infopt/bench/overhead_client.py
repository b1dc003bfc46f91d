"""Streams from a server over bare sockets: it reads bytes, counts events, and parses nothing.

A client that decodes every event takes as much CPU time as the server that made it, and then the
measurement is of the client.
"""

from __future__ import annotations

import selectors
import socket
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from infopt.bench.raw_http import Address, post
from infopt.errors import MeasurementError

_READ_BYTES = 2**18
_EVENT = b"data: {"
_DONE = b"data: [DONE]\n\n"
_END_OF_BODY = b"\r\n0\r\n\r\n"
_PATIENCE_S = 120.0


@dataclass(slots=True)
class StreamCount:
    """What came back.

    Attributes:
        duration_s: From the first request to the end of the last answer.
        num_requests: Answers that ended well.
        num_events: Events other than ``[DONE]``.
        num_bytes: Of the answers, HTTP included.
    """

    duration_s: float = 0.0
    num_requests: int = 0
    num_events: int = 0
    num_bytes: int = 0


@dataclass(slots=True)
class _Stream:
    """One connection, its answer so far, and the end of what it has read."""

    connection: socket.socket
    tail: bytes = b""


def stream_all(
    address: Address, path: str, payloads: Sequence[bytes], *, concurrency: int
) -> StreamCount:
    """Send requests for streams, ``concurrency`` at a time, and count what comes.

    Args:
        address: The server.
        path: Route.
        payloads: Bodies, which must ask for streams.
        concurrency: Connections; each sends its next request when its answer has ended.

    Raises:
        MeasurementError: If an answer is not a stream that ends well, or does not come.
    """
    count, queue = StreamCount(), iter(payloads)
    with selectors.DefaultSelector() as selector:
        connections = [_connect(address) for _ in range(concurrency)]
        try:
            start_s = time.perf_counter()
            for connection in connections:
                stream = _Stream(connection)
                if _send_next(stream, path, queue):
                    selector.register(connection, selectors.EVENT_READ, stream)
            while selector.get_map():
                _read_some(selector, path, queue, count)
            count.duration_s = time.perf_counter() - start_s
        finally:
            for connection in connections:
                connection.close()
    return count


def _connect(address: Address) -> socket.socket:
    connection = socket.create_connection((address.host, address.port), timeout=_PATIENCE_S)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return connection


def _send_next(stream: _Stream, path: str, queue: Iterator[bytes]) -> bool:
    """Send the next request; return False if there is none."""
    payload = next(queue, None)
    if payload is None:
        return False
    stream.tail = b""
    stream.connection.sendall(post(path, payload))
    return True


def _read_some(
    selector: selectors.BaseSelector, path: str, queue: Iterator[bytes], count: StreamCount
) -> None:
    """Read what has come on all connections."""
    ready = selector.select(_PATIENCE_S)
    if not ready:
        raise MeasurementError(f"The server was silent for {_PATIENCE_S:g} s.")
    for key, _ in ready:
        stream: _Stream = key.data
        if _take(stream, count) and not _send_next(stream, path, queue):
            selector.unregister(stream.connection)


def _take(stream: _Stream, count: StreamCount) -> bool:
    """Read once and count; return whether the answer has ended."""
    new = stream.connection.recv(_READ_BYTES)
    if not new:
        raise MeasurementError(f"The connection ended within an answer: {stream.tail[-300:]!r}.")
    # An event is counted when its first bytes are complete, however they are cut.
    kept = stream.tail[-(len(_EVENT) - 1) :]
    count.num_events += (kept + new).count(_EVENT)
    count.num_bytes += len(new)
    stream.tail = (stream.tail + new)[-300:]
    if not stream.tail.endswith(_END_OF_BODY):
        return False
    if _DONE not in stream.tail:
        raise MeasurementError(f"An answer did not end well: {stream.tail!r}.")
    count.num_requests += 1
    return True
