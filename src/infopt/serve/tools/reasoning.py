"""Splits what a model thought to itself from what it says."""

from __future__ import annotations

from collections.abc import Callable

import torch

from infopt.engine.constraint import TokenConstraint
from infopt.serve.tools.events import Content, Event, Reasoning
from infopt.serve.tools.scan import held_back
from infopt.serve.tools.tags import TAGS, Tags


class ReasoningSplitter:
    """Reads a thought at the beginning of a text; the tags are not shown.

    Args:
        is_open: Whether the prompt has already opened the tag.
        tags: Around the thought.
    """

    def __init__(self, *, is_open: bool, tags: Tags = TAGS["think"]) -> None:
        """Expect the first text."""
        self._begin, self._end = tags
        self._place = "thinking" if is_open else "before"
        self._pending = ""
        self._is_fresh = True

    def feed(self, text: str) -> list[Event]:
        """Return what is now known about the text so far."""
        self._pending += text
        events: list[Event] = []
        if self._place == "before":
            self._read_before()
        if self._place == "thinking":
            events += self._read_thinking()
        if self._place == "after_tag":
            self._pending = self._pending.lstrip("\n")
            self._place = "saying" if self._pending else "after_tag"
        if self._place == "saying" and self._pending:
            events.append(Content(self._pending))
            self._pending = ""
        return events

    def finish(self) -> list[Event]:
        """Return what was held back."""
        rest, self._pending = self._pending, ""
        kind = Reasoning if self._place == "thinking" else Content
        return [kind(rest)] if rest and self._place != "after_tag" else []

    def _read_before(self) -> None:
        text = self._pending.lstrip()
        if text.startswith(self._begin):
            self._place, self._pending = "thinking", text[len(self._begin) :]
        elif text and not self._begin.startswith(text):
            self._place = "saying"

    def _read_thinking(self) -> list[Event]:
        if self._is_fresh:
            self._pending = self._pending.lstrip("\n")
            self._is_fresh = not self._pending
        at = self._pending.find(self._end)
        if at >= 0:
            text, self._pending = self._pending[:at], self._pending[at + len(self._end) :]
            self._place = "after_tag"
        else:
            shown = len(self._pending) - held_back(self._pending, self._end)
            text, self._pending = self._pending[:shown], self._pending[shown:]
        return [Reasoning(text)] if text else []


class AfterReasoning:
    """A constraint that begins when the reasoning ends (a `TokenConstraint`).

    Args:
        inner: What limits the answer itself.
        token_bytes: Bytes of a token.
        eos_token_ids: Not allowed while the model thinks: there would be no answer.
        num_tokens: Size of the vocabulary.
        end: The tag that ends the reasoning.
    """

    def __init__(
        self,
        inner: TokenConstraint,
        token_bytes: Callable[[int], bytes],
        eos_token_ids: tuple[int, ...],
        num_tokens: int,
        end: str = TAGS["think"].end,
    ) -> None:
        """Begin in the reasoning."""
        self._end = end.encode()
        self._inner, self._token_bytes = inner, token_bytes
        self._thoughts: list[int] = []
        self._num_answer_tokens = 0
        self._is_over = False
        self._free = torch.ones(num_tokens, dtype=torch.bool)
        self._free[list(eos_token_ids)] = False

    @property
    def is_terminated(self) -> bool:
        """Whether the answer is complete."""
        return self._is_over and self._inner.is_terminated

    def allowed(self) -> torch.Tensor:
        """Return which tokens may come next, bool ``(num_tokens,)``."""
        return self._inner.allowed() if self._is_over else self._free

    def accept(self, token_id: int) -> bool:
        """Take the next token."""
        if self._is_over:
            self._num_answer_tokens += 1
            return self._inner.accept(token_id)
        self._thoughts.append(token_id)
        self._is_over = self._has_ended()
        return True

    def rollback(self, num_tokens: int) -> None:
        """Take back the newest tokens."""
        num_answer = min(num_tokens, self._num_answer_tokens)
        self._inner.rollback(num_answer)
        self._num_answer_tokens -= num_answer
        if num_tokens > num_answer:
            del self._thoughts[num_answer - num_tokens :]
            self._is_over = False

    def _has_ended(self) -> bool:
        # One byte at least per token, so this many tokens hold the whole tag.
        tail = self._thoughts[-len(self._end) - 1 :]
        return self._end in b"".join(self._token_bytes(token) for token in tail)
