"""Server-sent events, read as bytes arrive: cut anywhere, several at once, any line ending."""

from __future__ import annotations

import re
from dataclasses import dataclass

from infopt.bench.http.failures import RequestFailedError

MAX_EVENT_BYTES = 16 * 2**20
"""A longer event is no answer of a language model but a server that lost its way."""

_LINE_END = re.compile(rb"\r\n|\r|\n")
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"


@dataclass(frozen=True, slots=True)
class Event:
    """One event that holds data.

    Attributes:
        data: Its data lines, joined by newlines.
        name: Its type; ``message`` where it has none.
    """

    data: str
    name: str = "message"


class EventParser:
    """Turns the bytes of a body into events.

    Comments, ``id``, ``retry``, unknown fields and events without data give nothing. What has no
    blank line after it is no event (the connection broke inside it).
    """

    def __init__(self) -> None:
        """Begin a stream."""
        self._rest = b""
        self._data: list[bytes] = []
        self._name = ""
        self._is_start = True
        self._ended_with_cr = False

    def feed(self, data: bytes) -> list[Event]:
        """Return the events that these bytes complete.

        Raises:
            RequestFailedError: An event has no end, or is no UTF-8.
        """
        lines = self._lines(data)
        events = [event for line in lines if (event := self._take(line)) is not None]
        if len(self._rest) + sum(map(len, self._data)) > MAX_EVENT_BYTES:
            raise RequestFailedError(
                "malformed stream", f"an event is longer than {MAX_EVENT_BYTES} bytes"
            )
        return events

    def _lines(self, data: bytes) -> list[bytes]:
        """Return the complete lines; a line feed after a carriage return belongs to it."""
        if self._ended_with_cr and data:
            data = data.removeprefix(b"\n")
            self._ended_with_cr = False
        if not data:
            return []
        text = self._rest + data
        if self._is_start and len(text) >= len(_BYTE_ORDER_MARK):
            text, self._is_start = text.removeprefix(_BYTE_ORDER_MARK), False
        self._ended_with_cr = text.endswith(b"\r")
        *lines, self._rest = _LINE_END.split(text)
        return lines

    def _take(self, line: bytes) -> Event | None:
        if not line:
            return self._end_event()
        field, _, value = line.partition(b":")
        value = value.removeprefix(b" ")
        if field == b"data":
            self._data.append(value)
        elif field == b"event":
            self._name = value.decode("utf-8", errors="replace")
        return None

    def _end_event(self) -> Event | None:
        data, name = self._data, self._name
        self._data, self._name = [], ""
        if not any(data):
            return None
        try:
            return Event(b"\n".join(data).decode("utf-8"), name or "message")
        except UnicodeDecodeError as error:
            raise RequestFailedError("malformed stream", f"an event is no UTF-8: {error}") from None
