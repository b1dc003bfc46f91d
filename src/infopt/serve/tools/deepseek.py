"""DeepSeek's tool calls, whose markers are written with full-width bars and lower blocks."""

from __future__ import annotations

from typing import Literal

from infopt.serve.tools.content import ContentWriter
from infopt.serve.tools.events import CallArguments, CallStart, Event
from infopt.serve.tools.scan import ValueScanner, held_back

Place = Literal["text", "head", "arguments", "tail"]


class DeepSeekParser:
    """DeepSeek's calls: the name between markers, then the arguments, fenced or not."""

    BEGIN = "<\uff5ctool\u2581call\u2581begin\uff5c>"
    SEPARATOR = "<\uff5ctool\u2581sep\uff5c>"
    END = "<\uff5ctool\u2581call\u2581end\uff5c>"
    DECORATION = (
        "<\uff5ctool\u2581calls\u2581begin\uff5c>",
        "<\uff5ctool\u2581calls\u2581end\uff5c>",
        "```json",
        "```",
    )

    def __init__(self) -> None:
        """Expect text."""
        self._pending, self._head = "", ""
        self._place: Place = "text"
        self._scanner = ValueScanner()
        self._content = ContentWriter()
        self._num_calls = 0

    def feed(self, text: str) -> list[Event]:
        """Return what is now known about the text so far."""
        self._pending += text
        events: list[Event] = []
        while True:
            before = (self._pending, self._place)
            events += getattr(self, f"_read_{self._place}")()
            if (self._pending, self._place) == before:
                return events

    def finish(self) -> list[Event]:
        """Return what was held back."""
        rest = self._head + self._pending if self._place in ("text", "head") else ""
        self._pending = self._head = ""
        return self._content.write(rest)

    def _read_text(self) -> list[Event]:
        """Take text up to the next marker, in the order in which they come."""
        markers = (self.BEGIN, *self.DECORATION[:2])
        found = [(at, m) for m in markers if (at := self._pending.find(m)) >= 0]
        if not found:
            shown = len(self._pending) - max(held_back(self._pending, m) for m in markers)
            text, self._pending = self._pending[:shown], self._pending[shown:]
            return self._content.write(text)
        at, marker = min(found)
        text, self._pending = self._pending[:at], self._pending[at + len(marker) :]
        if marker == self.BEGIN:
            self._place, self._head = "head", marker
        return self._content.write(text)

    def _read_head(self) -> list[Event]:
        """Take everything up to the first brace; it holds the name."""
        at = self._pending.find("{")
        if at < 0:
            return []
        self._head += self._pending[:at]
        kind, separator, name = self._head.removeprefix(self.BEGIN).partition(self.SEPARATOR)
        for word in self.DECORATION:
            name = name.replace(word, "")
        name = name.strip() or kind.strip()
        self._pending = self._pending[at:]
        if not separator:
            text, self._head, self._place = self._head, "", "text"
            return self._content.write(text)
        self._head, self._place, self._scanner = "", "arguments", ValueScanner()
        self._num_calls += 1
        self._content.note_call()
        return [CallStart(self._num_calls - 1, name)]

    def _read_arguments(self) -> list[Event]:
        size = 0
        while size < len(self._pending) and not self._scanner.is_complete:
            self._scanner.feed(self._pending[size])
            size += 1
        text, self._pending = self._pending[:size], self._pending[size:]
        if self._scanner.is_complete:
            self._place = "tail"
        return [CallArguments(self._num_calls - 1, text)] if text else []

    def _read_tail(self) -> list[Event]:
        at = self._pending.find(self.END)
        if at >= 0:
            self._pending, self._place = self._pending[at + len(self.END) :], "text"
        return []
