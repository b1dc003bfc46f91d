"""From the text of one chat answer to content, reasoning and tool calls."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from infopt.serve.tools.events import CallArguments, CallStart, Content, Event, Reasoning
from infopt.serve.tools.parsers import ToolParser
from infopt.serve.tools.reasoning import ReasoningSplitter
from infopt.serve.tools.tags import TAGS, Tags


@dataclass(frozen=True, slots=True)
class OutputForm:
    """How the answers of one request are to be read.

    Attributes:
        reasoning_is_open: Whether the prompt has opened the reasoning; None reads no reasoning.
        tags: What stands around the reasoning.
        make_parser: Finds calls in the text; None finds none.
        forced_name: The whole text is the arguments of this function.
        max_calls: More calls are left out.
    """

    reasoning_is_open: bool | None = None
    tags: Tags = TAGS["think"]
    make_parser: Callable[[], ToolParser] | None = None
    forced_name: str | None = None
    max_calls: int | None = None


class ChatOutput:
    """Reads the text of one answer as it comes.

    Args:
        form: How to read it.
    """

    def __init__(self, form: OutputForm) -> None:
        """Start with nothing read."""
        self._form = form
        is_open = form.reasoning_is_open
        self._splitter = (
            None if is_open is None else ReasoningSplitter(is_open=is_open, tags=form.tags)
        )
        self._parser = form.make_parser() if form.make_parser is not None else None
        self._is_named = False
        self.has_calls = False

    def read(self, text: str, *, is_last: bool) -> list[dict[str, Any]]:
        """Return message deltas for new text; the last call gives everything held back."""
        events = self._split(text, is_last)
        deltas = [self._delta(event) for event in events]
        return [delta for delta in deltas if delta is not None]

    def finish_reason(self, reason: str | None) -> str | None:
        """Return the finish reason that the client sees.

        Calls that the model chose to make end with ``tool_calls``; a named call, which was not its
        choice, with ``stop``; an answer that was cut, with ``length``.
        """
        is_chosen = self.has_calls and self._form.forced_name is None
        return "tool_calls" if is_chosen and reason == "stop" else reason

    def _split(self, text: str, is_last: bool) -> list[Event]:
        if self._splitter is None:
            pieces: list[Event] = [Content(text)] if text else []
        else:
            pieces = self._splitter.feed(text)
            pieces += self._splitter.finish() if is_last else []
        events: list[Event] = []
        for piece in pieces:
            events += self._parse(piece.text) if isinstance(piece, Content) else [piece]
        if is_last and self._parser is not None:
            events += self._parser.finish()
        return events

    def _parse(self, text: str) -> list[Event]:
        name = self._form.forced_name
        if name is not None:
            start: list[Event] = [] if self._is_named else [CallStart(0, name)]
            self._is_named = True
            return [*start, CallArguments(0, text)]
        return [Content(text)] if self._parser is None else self._parser.feed(text)

    def _delta(self, event: Event) -> dict[str, Any] | None:
        if isinstance(event, Content):
            return {"content": event.text}
        if isinstance(event, Reasoning):
            return {"reasoning_content": event.text}
        if self._form.max_calls is not None and event.index >= self._form.max_calls:
            return None
        self.has_calls = True
        if isinstance(event, CallStart):
            function = {"name": event.name, "arguments": ""}
            call = {"id": f"call_{uuid.uuid4().hex}", "type": "function", "function": function}
            return {"tool_calls": [{"index": event.index} | call]}
        return {"tool_calls": [{"index": event.index, "function": {"arguments": event.text}}]}


def join_message(deltas: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the message that deltas add up to."""
    texts = {"content": "", "reasoning_content": ""}
    calls: list[dict[str, Any]] = []
    for delta in deltas:
        for key in texts:
            texts[key] += delta.get(key, "")
        for piece in delta.get("tool_calls", ()):
            if piece["index"] == len(calls):
                calls.append({k: v for k, v in piece.items() if k != "index"})
                calls[-1]["function"] = dict(piece["function"])
            else:
                calls[piece["index"]]["function"]["arguments"] += piece["function"]["arguments"]
    message: dict[str, Any] = {"role": "assistant", "content": texts["content"], "refusal": None}
    if texts["reasoning_content"]:
        message["reasoning_content"] = texts["reasoning_content"]
    if calls:
        message |= {"content": texts["content"] or None, "tool_calls": calls}
    return message
