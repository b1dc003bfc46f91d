"""Mistral's tool calls, in the older form (a list of objects) and in the newer one.

[TOOL_CALLS] [{"name": "f", "arguments": {...}}, ...]
[TOOL_CALLS]f[ARGS]{...}[TOOL_CALLS]g[CALL_ID]abc[ARGS]{...}
"""

from __future__ import annotations

import re
from typing import Literal

from infopt.serve.tools.content import ContentWriter
from infopt.serve.tools.events import CallArguments, CallStart, Event
from infopt.serve.tools.json_calls import JsonCallParser
from infopt.serve.tools.scan import ValueScanner, held_back

Place = Literal["text", "head", "arguments", "list"]

BEGIN, ARGS = "[TOOL_CALLS]", "[ARGS]"
_HEAD = re.compile(r"\s*([\w.-]+)(?:\[CALL_ID\][\w-]*)?\s*")
"""Function name, and an id that is not used: ids are made for each answer."""

_UNFINISHED_HEAD = re.compile(r"\s*(?:[\w.-]+(?:\[[\w\]]*)?[\w-]*)?\s*(?:\[[A-Z]*)?")
"""What may still become a head followed by ``[ARGS]``."""


class MistralParser:
    """Mistral's calls, whichever form comes after the first marker."""

    def __init__(self) -> None:
        """Expect text."""
        self._pending = ""
        self._place: Place = "text"
        self._list = JsonCallParser(BEGIN, at_start=False)
        self._scanner = ValueScanner()
        self._content = ContentWriter()
        self._is_fresh = True
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
        """Return what was held back: a name alone is content, one with ``[ARGS]`` a call."""
        if self._place == "list":
            return self._list.finish()
        if self._place == "arguments" and self._is_fresh:
            return [CallArguments(self._num_calls - 1, "{}")]
        rest, self._pending = self._pending, ""
        if self._place == "head":
            rest = BEGIN + rest
        return self._content.write(rest)

    def _read_text(self) -> list[Event]:
        at = self._pending.find(BEGIN)
        shown = at if at >= 0 else len(self._pending) - held_back(self._pending, BEGIN)
        text, self._pending = self._pending[:shown], self._pending[shown:]
        if at >= 0:
            self._pending, self._place = self._pending[len(BEGIN) :], "head"
        return self._content.write(text)

    def _read_head(self) -> list[Event]:
        """Take a name and ``[ARGS]``, which some tokenizers leave out of the text."""
        start = self._pending.lstrip()[:1]
        if not self._num_calls and start and start in "[{":
            self._place = "list"
            self._pending = BEGIN + self._pending
            return []
        head, found, rest = self._pending.partition(ARGS)
        if not found:
            head, found, rest = self._pending.partition("{")
            rest = found + rest
        named = _HEAD.fullmatch(head)
        if found and named:
            self._pending, self._place = rest, "arguments"
            self._scanner, self._is_fresh = ValueScanner(), True
            self._num_calls += 1
            self._content.note_call()
            return [CallStart(self._num_calls - 1, named[1])]
        if found or not _UNFINISHED_HEAD.fullmatch(self._pending):
            self._place = "text"
            return self._content.write(BEGIN)
        return []

    def _read_arguments(self) -> list[Event]:
        if self._is_fresh:
            self._pending = self._pending.lstrip()
            self._is_fresh = not self._pending
        size = 0
        while size < len(self._pending) and self._scanner.feed(self._pending[size]):
            size += 1
            if self._scanner.is_complete:
                break
        text, self._pending = self._pending[:size], self._pending[size:]
        if self._scanner.is_complete:
            self._place = "text"
        return [CallArguments(self._num_calls - 1, text)] if text else []

    def _read_list(self) -> list[Event]:
        text, self._pending = self._pending, ""
        return self._list.feed(text)
