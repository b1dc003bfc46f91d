"""What stands beside calls: white space between them, and after the last one, is not shown."""

from __future__ import annotations

from infopt.serve.tools.events import Content, Event


class ContentWriter:
    """Makes content of text; after a call, white space waits for the text that follows it.

    So it does not matter in how many pieces the text comes.
    """

    def __init__(self) -> None:
        """Begin before any call."""
        self._is_after_call, self._space = False, ""

    def note_call(self) -> None:
        """Note that a call has begun."""
        self._is_after_call, self._space = True, ""

    def write(self, text: str) -> list[Event]:
        """Return the content that a text is, if it is any yet."""
        if self._is_after_call and not text.strip():
            self._space += text
            return []
        text, self._space, self._is_after_call = self._space + text, "", False
        return [Content(text)] if text else []
