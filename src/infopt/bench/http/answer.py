"""`StreamedAnswer`: what the events of one answer said, and when."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from infopt.bench.http.failures import RequestFailedError, error_text
from infopt.bench.http.sse import Event

DONE = "[DONE]"


@dataclass(frozen=True, slots=True)
class Piece:
    """Text that arrived with one event.

    Attributes:
        time_s: When.
        text: The text; empty where the event counts tokens whose text is held back.
        is_content: False for reasoning and tool calls.
        num_tokens_so_far: The server's running count with this event (None: it gives none).
    """

    time_s: float
    text: str
    is_content: bool = True
    num_tokens_so_far: int | None = None


@dataclass(slots=True)
class StreamedAnswer:
    """An answer as far as it has come.

    Attributes:
        pieces: Its text, in order.
        usage: The last token counts of the server.
        finish_reason: Why the server ended it.
        last_choice_s: When the last event with a choice came.
        finished_s: When ``[DONE]`` came (None: it did not).
    """

    pieces: list[Piece] = field(default_factory=list)
    usage: Mapping[str, Any] | None = None
    finish_reason: str | None = None
    last_choice_s: float | None = None
    finished_s: float | None = None

    @property
    def is_done(self) -> bool:
        """Whether the answer ended as it should."""
        return self.finished_s is not None

    @property
    def text(self) -> str:
        """All text that came, reasoning and tool calls included."""
        return "".join(piece.text for piece in self.pieces)

    def read(self, event: Event, time_s: float) -> None:
        """Take one event in.

        Raises:
            RequestFailedError: It reports an error, or is no chunk of an answer.
        """
        if self.is_done:
            return
        if event.data == DONE:
            self.finished_s = time_s
            return
        chunk = _parse(event)
        usage = chunk.get("usage")
        if isinstance(usage, Mapping):
            self.usage = usage
        for choice in chunk.get("choices") or ():
            self._read_choice(choice, self._count(usage), time_s)

    def _read_choice(self, choice: Mapping[str, Any], count: int | None, time_s: float) -> None:
        self.last_choice_s = time_s
        self.finish_reason = choice.get("finish_reason") or self.finish_reason
        found = [(text, is_content) for text, is_content in _texts(choice) if text]
        if not found and count is not None and count > self._num_counted():
            found = [("", True)]
        self.pieces += [Piece(time_s, text, kind, count) for text, kind in found]

    def _count(self, usage: object) -> int | None:
        value = usage.get("completion_tokens") if isinstance(usage, Mapping) else None
        return value if isinstance(value, int) else None

    def _num_counted(self) -> int:
        return (self.pieces[-1].num_tokens_so_far or 0) if self.pieces else 0


def _parse(event: Event) -> Mapping[str, Any]:
    try:
        chunk = json.loads(event.data)
    except ValueError as error:
        kind = "error event" if event.name == "error" else "malformed stream"
        raise RequestFailedError(kind, error_text(f"{event.data} ({error})")) from None
    is_mapping = isinstance(chunk, Mapping)
    if event.name == "error" or (is_mapping and _is_error(chunk)):
        raise RequestFailedError("error event", error_text(_error_of(chunk)))
    if not is_mapping or not _has_form(chunk):
        raise RequestFailedError("malformed stream", f"not a chunk: {error_text(event.data)}")
    return chunk


def _is_error(chunk: Mapping[str, Any]) -> bool:
    return bool(chunk.get("error")) or chunk.get("object") == "error"


def _error_of(chunk: Any) -> Any:
    return (chunk.get("error") or chunk) if isinstance(chunk, Mapping) else chunk


def _has_form(chunk: Mapping[str, Any]) -> bool:
    choices = chunk.get("choices")
    if choices is None:
        return "usage" in chunk
    return isinstance(choices, list) and all(isinstance(c, Mapping) for c in choices)


def _texts(choice: Mapping[str, Any]) -> Iterator[tuple[str, bool]]:
    """Yield (text, whether it is content) of a choice, in the order a reader would see it."""
    delta = _mapping(choice.get("delta"))
    yield _text(delta.get("reasoning_content")) or _text(delta.get("reasoning")), False
    calls = delta.get("tool_calls")
    for call in calls if isinstance(calls, list) else ():
        function = _mapping(_mapping(call).get("function"))
        yield _text(function.get("name")) + _text(function.get("arguments")), False
    yield _text(choice.get("text")) or _text(delta.get("content")), True


def _mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""
