"""Tool calls written as JSON objects, which is how most families write them."""

from __future__ import annotations

from infopt.serve.tools.content import ContentWriter
from infopt.serve.tools.events import CallArguments, CallStart, Event
from infopt.serve.tools.scan import CallScanner, held_back


class JsonCallParser:
    """Calls as JSON objects, after a marker or at the very beginning of the text.

    Args:
        begin: Marker before a call or a list of calls.
        end: Marker after it; without one, the calls go on to the end of the text.
        at_start: Whether text that begins with an object or a list is calls without a marker.
    """

    def __init__(self, begin: str | None, end: str | None = None, *, at_start: bool) -> None:
        """Expect text."""
        self._begin, self._end = begin, end
        self._pending, self._section = "", ""
        self._at_start, self._in_calls = at_start, False
        self._scanner: CallScanner | None = None
        self._content = ContentWriter()
        self._num_calls, self._num_sent, self._is_started = 0, 0, False

    def feed(self, text: str) -> list[Event]:
        """Return what is now known about the text so far."""
        self._pending += text
        events: list[Event] = []
        before = None
        while self._pending and before != (before := (len(self._pending), self._in_calls)):
            events += self._read_calls() if self._in_calls else self._read_text()
        return events

    def finish(self) -> list[Event]:
        """Return what was held back: a call that never became one is content."""
        rest = self._pending
        if self._in_calls and not self._is_started:
            rest = self._section + rest if self._section.strip() else ""
        elif self._in_calls:
            rest = ""
        self._pending, self._section = "", ""
        return self._content.write(rest)

    def _enter_calls(self, marker: str) -> None:
        self._in_calls, self._section = True, marker
        self._scanner, self._is_started = None, False

    def _leave_calls(self) -> None:
        self._in_calls, self._section, self._scanner = False, "", None

    def _read_text(self) -> list[Event]:
        """Take text up to the next marker."""
        if self._at_start and self._pending.strip():
            self._at_start = False
            if self._pending.lstrip()[0] in "{[":
                self._enter_calls("")
                return []
        elif self._at_start:
            return []
        if self._begin is None:
            return self._take_text(len(self._pending))
        at = self._pending.find(self._begin)
        if at < 0:
            return self._take_text(len(self._pending) - held_back(self._pending, self._begin))
        events = self._take_text(at)
        self._pending = self._pending[len(self._begin) :]
        self._enter_calls(self._begin)
        return events

    def _take_text(self, size: int) -> list[Event]:
        text, self._pending = self._pending[:size], self._pending[size:]
        return self._content.write(text)

    def _read_calls(self) -> list[Event]:
        """Take one character, or the marker at the end."""
        if self._scanner is None and self._end is not None:
            if self._pending.startswith(self._end):
                self._pending = self._pending[len(self._end) :]
                self._leave_calls()
                return []
            if self._end.startswith(self._pending):
                return []
        character, self._pending = self._pending[0], self._pending[1:]
        if self._scanner is None and character != "{":
            return self._between(character)
        if self._scanner is None:
            self._scanner, self._num_sent, self._is_started = CallScanner(), 0, False
        self._section += character
        self._scanner.feed(character)
        return self._progress(self._scanner)

    def _between(self, character: str) -> list[Event]:
        """Take a character between calls; anything but punctuation ends them."""
        self._section += character
        if character.isspace() or character in "[],;":
            return []
        return self._give_up()

    def _progress(self, scanner: CallScanner) -> list[Event]:
        """Return what the newest character made known of the current call."""
        events: list[Event] = []
        if scanner.name is not None and not self._is_started and scanner.place != "broken":
            events.append(CallStart(self._num_calls, scanner.name))
            self._is_started = True
            self._num_calls += 1
            self._content.note_call()
        if self._is_started:
            index = self._num_calls - 1
            if scanner.is_call and not scanner.arguments:
                events.append(CallArguments(index, "{}"))
            if fresh := scanner.arguments[self._num_sent :]:
                events.append(CallArguments(index, fresh))
                self._num_sent = len(scanner.arguments)
        if scanner.is_over and not self._is_started:
            return [*events, *self._give_up()]
        if scanner.is_over:
            self._scanner, self._section = None, ""
        return events

    def _give_up(self) -> list[Event]:
        """Turn what was read since the last call into content, but for the end of its list."""
        text = self._section
        if self._num_calls and text.lstrip().startswith("]"):
            text = text.lstrip()[1:]
        self._leave_calls()
        return self._content.write(text)
