"""Servers to be loaded: one that says what a test wrote, and one on a virtual clock."""

from __future__ import annotations

import asyncio
import json
import selectors
import socket
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from typing import Any

import httpx
import pytest

from infopt.bench.http.load import HttpLoad
from infopt.bench.http.openloop import OpenLoop
from infopt.bench.http.result import HttpLoadResult
from infopt.bench.http.target import HttpTarget
from infopt.bench.workload_types import WorkloadRequest


@pytest.fixture
def raw_server() -> Iterator[Callable[[Sequence[bytes | float]], str]]:
    """Factory of servers that send bytes as written, whatever is asked; numbers are pauses in s.

    ``raw_server([HEAD, b"data: ...", 0.01, ...])`` returns the address; the connection is closed
    after the last part.
    """
    sockets: list[socket.socket] = []

    def start(parts: Sequence[bytes | float]) -> str:
        listener = socket.create_server(("127.0.0.1", 0))
        sockets.append(listener)
        threading.Thread(target=_serve_raw, args=(listener, parts), daemon=True).start()
        return f"http://127.0.0.1:{listener.getsockname()[1]}"

    yield start
    for listener in sockets:
        listener.close()


def _serve_raw(listener: socket.socket, parts: Sequence[bytes | float]) -> None:
    while True:
        try:
            connection, _ = listener.accept()
        except OSError:
            return  # the test is over
        with connection:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            _read_request(connection)
            for part in parts:
                if isinstance(part, bytes):
                    connection.sendall(part)
                else:
                    time.sleep(part)


def _read_request(connection: socket.socket) -> None:
    """Read head and body: closing a socket with unread bytes would reset the connection."""
    data = b""
    while b"\r\n\r\n" not in data:
        data += connection.recv(65536)
    head, _, body = data.partition(b"\r\n\r\n")
    lines = head.lower().split(b"\r\n")
    length = sum(int(x.partition(b":")[2]) for x in lines if x.startswith(b"content-length"))
    while len(body) < length:
        body += connection.recv(65536)


class _JumpingSelector(selectors.DefaultSelector):
    """Moves a clock forward instead of waiting."""

    def __init__(self) -> None:
        super().__init__()
        self.now_s = 1000.0

    def select(self, timeout: float | None = None) -> Any:
        ready = super().select(0)
        if not ready and timeout is None:
            raise AssertionError("the run waits for something that never comes")
        if not ready and timeout is not None and timeout > 0:
            self.now_s += timeout
        return ready


class VirtualLoop(asyncio.SelectorEventLoop):
    """An event loop whose seconds take no time."""

    def __init__(self) -> None:
        self._jumping = _JumpingSelector()
        super().__init__(self._jumping)

    def time(self) -> float:
        return self._jumping.now_s


Script = Sequence[tuple[float, bytes]]
"""(seconds after the request came, bytes to send then)."""


class ScriptedTransport(httpx.AsyncBaseTransport):
    """A server on the virtual clock: ``num_workers`` requests at a time, first come first served.

    Not HTTP: bytes of the body go straight to the client.
    """

    def __init__(self, script: Callable[[int], Script], num_workers: int | None) -> None:
        self._script = script
        self._workers = asyncio.Semaphore(num_workers or 10**6)
        self.bodies: list[dict[str, Any]] = []

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        index = len(self.bodies)
        self.bodies.append(json.loads(await request.aread()))
        await self._workers.acquire()
        stream = _ScriptedBody(self._script(index), self._workers.release)
        return httpx.Response(200, headers={"content-type": "text/event-stream"}, stream=stream)


class _ScriptedBody(httpx.AsyncByteStream):
    def __init__(self, script: Script, on_close: Callable[[], None]) -> None:
        self._script, self._on_close = script, on_close

    async def __aiter__(self) -> AsyncIterator[bytes]:
        start_s = asyncio.get_running_loop().time()
        for after_s, data in self._script:
            await asyncio.sleep(start_s + after_s - asyncio.get_running_loop().time())
            yield data

    async def aclose(self) -> None:
        self._on_close()


@pytest.fixture
def target() -> HttpTarget:
    """A target without a tokenizer, whose prompts are ids all the same."""

    class Ids:
        chat_template = None

        def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
            return list(text.encode())

        def decode(self, ids: list[int], skip_special_tokens: bool = True) -> str:
            return bytes(ids).decode()

        def apply_chat_template(self, messages: list[dict[str, Any]]) -> list[int]:
            raise NotImplementedError

    return HttpTarget("http://test", "m", tokenizer=Ids(), tokenizer_source="server")


@pytest.fixture
def run_virtually(target: HttpTarget) -> Callable[..., HttpLoadResult]:
    """Run a schedule against a script on the virtual clock.

    ``run_virtually(requests, script, num_workers=1, warmup=..., endpoint="chat", ...)``.
    """

    def run(
        requests: Sequence[WorkloadRequest],
        script: Callable[[int], Script],
        *,
        num_workers: int | None = None,
        warmup: Sequence[WorkloadRequest] = (),
        max_duration_s: float | None = None,
        on_progress: Callable[..., None] = lambda _: None,
        **options: Any,
    ) -> HttpLoadResult:
        load = HttpLoad(**({"target": target} | options))
        loop = VirtualLoop()
        try:
            transport = ScriptedTransport(script, num_workers)
            run = OpenLoop(load, max_duration_s, on_progress, transport)
            return loop.run_until_complete(run.measure(requests, warmup))
        finally:
            loop.close()

    return run


@pytest.fixture
def make_requests() -> Callable[..., list[WorkloadRequest]]:
    """Factory of requests with given arrival times."""

    def make(arrivals: Sequence[float], *, max_tokens: int = 4) -> list[WorkloadRequest]:
        return [WorkloadRequest(f"r{i}", t, [65, 66], max_tokens) for i, t in enumerate(arrivals)]

    return make


@pytest.fixture
def sse() -> Callable[..., bytes]:
    """Build events: ``sse({"choices": ...}, "[DONE]")``."""

    def build(*events: dict[str, Any] | str) -> bytes:
        texts = [e if isinstance(e, str) else json.dumps(e) for e in events]
        return b"".join(f"data: {text}\n\n".encode() for text in texts)

    return build


@pytest.fixture
def answer_of(sse: Callable[..., bytes]) -> Callable[..., Script]:
    """Script of a whole answer: ``answer_of((0.1, "a"), (0.2, "bc"), tokens=3)``.

    The answer ends with the last text; ``tokens=None`` is a server that does not count.
    """

    def build(*texts: tuple[float, str], tokens: int | None) -> Script:
        usage = {} if tokens is None else {"usage": {"completion_tokens": tokens}}
        end = sse({"choices": [], **({"usage": None} | usage)}, "[DONE]")
        script = [(at_s, sse({"choices": [{"index": 0, "text": text}]})) for at_s, text in texts]
        return [*script, (texts[-1][0], end)]

    return build
