"""A small HTTP/1.1 client on asyncio streams, for load that a well-behaved client cannot make.

It can send less than it announced, read slowly through a small buffer, and hang up anywhere.
Answers are read to the letter: a length that is not kept is an error and no shorter answer.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass

from infopt.errors import MeasurementError

_READ_BYTES = 65536


class BrokenAnswerError(MeasurementError):
    """The server closed the connection in the middle of an answer, or before it."""


@dataclass(frozen=True, slots=True)
class Address:
    """Where a server listens."""

    host: str
    port: int


@dataclass(frozen=True, slots=True)
class Head:
    """Status and headers of an answer; names are in lower case."""

    status: int
    headers: Mapping[str, str]

    @property
    def stays_open(self) -> bool:
        """Whether the connection takes another request after the body."""
        return self.headers.get("connection", "").lower() != "close"


class Connection:
    """One connection.

    Args:
        reader: From asyncio.
        writer: From asyncio.
    """

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Use `Connection.open`."""
        self._reader, self._writer = reader, writer

    @classmethod
    async def open(cls, address: Address, *, small_buffer: bool = False) -> Connection:
        """Connect.

        Args:
            address: Where to.
            small_buffer: Let the system hold a few kilobytes only, so that whoever reads slowly
                makes the server wait.
        """
        connection = socket.socket()
        connection.setblocking(False)
        if small_buffer:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        try:
            loop = asyncio.get_running_loop()
            await loop.sock_connect(connection, (address.host, address.port))
            limit = 4096 if small_buffer else 2**20
            return cls(*await asyncio.open_connection(sock=connection, limit=limit))
        except BaseException:
            connection.close()
            raise

    async def send(self, data: bytes) -> None:
        """Send bytes as they are."""
        self._writer.write(data)
        await self._writer.drain()

    async def head(self) -> Head:
        """Read status and headers.

        Raises:
            BrokenAnswerError: If the connection ends before they are complete.
        """
        try:
            raw = await self._reader.readuntil(b"\r\n\r\n")
        except (asyncio.IncompleteReadError, ConnectionError) as error:
            raise BrokenAnswerError("the connection ended before an answer.") from error
        first, *lines = raw.decode("latin-1").rstrip().split("\r\n")
        pairs = (line.partition(":") for line in lines)
        return Head(int(first.split(" ", 2)[1]), {k.lower(): v.strip() for k, _, v in pairs})

    async def pieces(self, head: Head) -> AsyncIterator[bytes]:
        """Yield the body as it comes.

        Raises:
            BrokenAnswerError: If the connection ends before the body does.
        """
        try:
            if head.headers.get("transfer-encoding") == "chunked":
                while size := int(await self._reader.readuntil(b"\r\n"), 16):
                    yield await self._reader.readexactly(size)
                    await self._reader.readexactly(2)
                await self._reader.readexactly(2)
                return
            left = int(head.headers.get("content-length", 0))
            while left:
                piece = await self._reader.read(min(left, _READ_BYTES))
                if not piece:
                    raise BrokenAnswerError(f"the connection ended {left} bytes too early.")
                left -= len(piece)
                yield piece
        except (asyncio.IncompleteReadError, ConnectionError) as error:
            raise BrokenAnswerError("the connection ended within an answer.") from error

    async def body(self, head: Head) -> bytes:
        """Read the whole body."""
        return b"".join([piece async for piece in self.pieces(head)])

    def close(self) -> None:
        """Hang up, wherever the answer is."""
        self._writer.close()


def post(path: str, payload: bytes, headers: Mapping[str, str] | None = None) -> bytes:
    """Return the bytes of a POST with a JSON body.

    Args:
        path: Route.
        payload: Body.
        headers: Further headers; they replace those made here.
    """
    made = {
        "Host": "localhost",
        "Content-Type": "application/json",
        "Content-Length": str(len(payload)),
    }
    lines = [
        f"POST {path} HTTP/1.1",
        *(f"{k}: {v}" for k, v in (made | dict(headers or {})).items()),
    ]
    return "\r\n".join(lines).encode("latin-1") + b"\r\n\r\n" + payload


async def get(address: Address, path: str) -> tuple[int, str]:
    """Return status and text of a GET on a connection of its own."""
    connection = await Connection.open(address)
    try:
        await connection.send(f"GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
        head = await connection.head()
        return head.status, (await connection.body(head)).decode()
    finally:
        connection.close()
