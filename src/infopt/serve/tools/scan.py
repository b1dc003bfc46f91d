"""Reads text as it comes: where JSON values end, what a call object says, what may be a marker."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Literal

_NAME_KEYS = ("name",)
_ARGUMENT_KEYS = ("arguments", "parameters")


class ValueScanner:
    """Finds the end of one JSON value that is fed in pieces.

    Objects, arrays and strings end with themselves; numbers and words end before the character
    after them, which `feed` then does not take.
    """

    def __init__(self) -> None:
        """Expect the first character of a value."""
        self._depth, self._in_string, self._escaped, self._begun = 0, False, False, False
        self.is_complete = False

    def feed(self, character: str) -> bool:
        """Look at a character; return whether it belongs to the value."""
        if self._in_string:
            self._feed_string(character)
            return True
        if not self._begun or self._depth:
            self._feed_open(character)
            return True
        if character in ",]} \t\r\n":  # the end of a number or word
            self.is_complete = True
            return False
        return True

    def _feed_open(self, character: str) -> None:
        self._begun = self._begun or not character.isspace()
        if character == '"':
            self._in_string = True
        elif character in "{[":
            self._depth += 1
        elif character in "}]":
            self._depth -= 1
            self.is_complete = self._depth <= 0

    def _feed_string(self, character: str) -> None:
        if self._escaped:
            self._escaped = False
        elif character == "\\":
            self._escaped = True
        elif character == '"':
            self._in_string = False
            self.is_complete = self._depth == 0


Place = Literal["before", "key", "colon", "value", "after", "done", "broken"]


@dataclass(slots=True)
class CallScanner:
    """Reads ``{"name": ..., "arguments": {...}}``, keys in any order, others ignored.

    Attributes:
        raw: Everything read so far.
        name: The function's name, once it is known.
        arguments: The arguments so far, as written.
        place: Where in the object the next character is.
    """

    raw: str = ""
    name: str | None = None
    arguments: str = ""
    place: Place = "before"
    _key: str = ""
    _text: str = ""
    _scanner: ValueScanner = field(default_factory=ValueScanner)

    @property
    def is_over(self) -> bool:
        """Whether the object has ended, or is none."""
        return self.place in ("done", "broken")

    @property
    def is_call(self) -> bool:
        """Whether a whole object with a name was read."""
        return self.place == "done" and self.name is not None

    def feed(self, character: str) -> None:
        """Take the next character."""
        self.raw += character
        if self.place in ("key", "value") and self._feed_token(character):
            return
        if character.isspace():
            return
        self.place = self._next_place(character)

    def _next_place(self, character: str) -> Place:
        """Return what a character between keys and values leads to."""
        if self.place == "before":
            return "key" if character == "{" else "broken"
        if self.place == "colon":
            return "value" if character == ":" else "broken"
        if self.place == "after" and character == ",":
            return "key"
        if self.place == "after" and character == "}":
            return "done"
        return "broken"

    def _feed_token(self, character: str) -> bool:
        """Take a character of a key or value; False if it comes after it."""
        if self.place == "key" and not self._text and character != '"':
            if character == "}":
                self.place = "done"
            elif not character.isspace():
                self.place = "broken"
            return True
        if not self._text and character.isspace():
            return True
        takes = self._scanner.feed(character)
        if takes:
            self._text += character
            if self.place == "value" and self._key in _ARGUMENT_KEYS:
                self.arguments += character
        if self._scanner.is_complete:
            self._end_token()
        return takes

    def _end_token(self) -> None:
        text, self._text, self._scanner = self._text, "", ValueScanner()
        if self.place == "key":
            self._key, self.place = _string(text) or "", "colon"
            return
        self.place = "after"
        if self._key in _NAME_KEYS:
            self.name = _string(text)


def _string(text: str) -> str | None:
    """Return the string that a JSON literal stands for; None if it is none."""
    try:
        value = json.loads(text, strict=False)
    except ValueError:
        return None
    return value if isinstance(value, str) else None


def held_back(text: str, marker: str) -> int:
    """Return the length of the longest end of ``text`` that begins ``marker``."""
    for size in range(min(len(marker) - 1, len(text)), 0, -1):
        if text.endswith(marker[:size]):
            return size
    return 0
