"""The clients of a soak: many at once, patient, slow, or gone before the answer is."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

from infopt.bench.raw_http import Address, BrokenAnswerError, Connection, post
from infopt.bench.soak_request import SoakRequest

_PATIENCE_S = 300.0
"""A hang guard: nothing in a soak takes nearly as long."""

_PAUSE_S = 0.01
"""What a slow reader waits between two pieces."""


@dataclass(slots=True)
class Reply:
    """What came back.

    Attributes:
        request: What was asked.
        status: HTTP status; None where the client left or the connection broke.
        body: All that was read.
        fault: What went wrong with the connection.
    """

    request: SoakRequest
    status: int | None = None
    body: bytes = b""
    fault: str | None = None


async def send_all(
    address: Address,
    requests: Iterable[SoakRequest],
    *,
    concurrency: int,
    on_reply: Callable[[Reply], None],
) -> None:
    """Send requests, ``concurrency`` at a time, each as soon as another has ended.

    Args:
        address: The server.
        requests: What to send, in order.
        concurrency: Number of clients.
        on_reply: Told about each reply.
    """
    queue = iter(requests)
    async with asyncio.TaskGroup() as group:
        for _ in range(concurrency):
            group.create_task(_Client(address, on_reply).work(queue))


@dataclass(slots=True)
class _Client:
    """One client; it keeps its connection as long as the server does."""

    address: Address
    on_reply: Callable[[Reply], None]
    connection: Connection | None = field(default=None, init=False)

    async def work(self, queue: Iterator[SoakRequest]) -> None:
        """Send what the queue gives until it is empty."""
        try:
            for request in queue:
                self.on_reply(await self._send(request))
        finally:
            self._hang_up()

    async def _send(self, request: SoakRequest) -> Reply:
        reply = Reply(request)
        try:
            async with asyncio.timeout(_PATIENCE_S):
                await self._exchange(reply)
        except TimeoutError:
            reply.fault = f"no answer within {_PATIENCE_S:g} s"
            self._hang_up()
        except (BrokenAnswerError, OSError) as error:
            reply.fault = str(error)
            self._hang_up()
        return reply

    async def _exchange(self, reply: Reply) -> None:
        request = reply.request
        slow = request.manner == "read slowly"
        if self.connection is None or request.manner != "read":
            self._hang_up()
            self.connection = await Connection.open(self.address, small_buffer=slow)
        await self.connection.send(post(request.path, request.payload, request.headers))
        if request.manner == "hang up":
            await _leave(self.connection, reply)
            self._hang_up()
            return
        head = await self.connection.head()
        pieces = []
        async for piece in self.connection.pieces(head):
            pieces.append(piece)
            if slow:
                await asyncio.sleep(_PAUSE_S)
        reply.status, reply.body = head.status, b"".join(pieces)
        if not head.stays_open or slow:
            self._hang_up()

    def _hang_up(self) -> None:
        if self.connection is not None:
            self.connection.close()
            self.connection = None


async def _leave(connection: Connection, reply: Reply) -> None:
    """Wait for the moment to hang up."""
    leave = reply.request.leave
    await asyncio.sleep(leave.wait_s)
    if not leave.num_pieces:
        return
    head = await connection.head()
    if head.status not in reply.request.statuses:
        reply.fault = f"status {head.status}"
    pieces = connection.pieces(head)
    for _ in range(leave.num_pieces):
        if await anext(pieces, None) is None:
            return
