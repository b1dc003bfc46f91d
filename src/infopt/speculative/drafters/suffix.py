"""The longest end of the text that occurred before, of any length, says what comes next.

A suffix automaton holds every run of tokens of a text in at most two states per token and grows by
one token in constant time on average. The suffix link of its last state is the longest end of the
text that occurred before, so looking it up costs nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from infopt.engine.drafting import Drafter, DraftTarget
from infopt.speculative.config import DRAFTERS, MAX_DRAFT_TOKENS, check_count
from infopt.speculative.drafters.per_output import PerOutput, copy_from

_MAX_LINKS = 16
"""Ends of the text whose latest place is noted per token. Text has few; a loop has as many as it
has tokens, and there every place is as good as another."""


@DRAFTERS.register("suffix")
@dataclass(frozen=True, slots=True)
class SuffixOptions:
    """Options of ``{"method": "suffix"}``.

    Attributes:
        num_speculative_tokens: Most guesses per step.
        min_match: Shortest end of the text that guesses are taken from.
        max_spec_factor: At most this many guesses per token of that end: the longer the text has
            repeated itself, the further it is trusted. 0 does not limit them.
    """

    num_speculative_tokens: int = 8
    min_match: int = 2
    max_spec_factor: int = 2

    def __post_init__(self) -> None:
        """Check every value.

        Raises:
            ConfigError: Names option, value and range.
        """
        check_count("num_speculative_tokens", self.num_speculative_tokens, 1, MAX_DRAFT_TOKENS)
        check_count("min_match", self.min_match, 1, 1024)
        check_count("max_spec_factor", self.max_spec_factor, 0, MAX_DRAFT_TOKENS)

    def build(self, target: DraftTarget | None = None) -> Drafter:
        """Return the drafter, which looks in the text alone."""
        del target
        options = self
        return PerOutput(self.num_speculative_tokens, lambda: SuffixIndex(options))


@dataclass(slots=True)
class _State:
    """Runs of tokens that end at the same places: from the longest down to above the link's.

    Attributes:
        length: Tokens of the longest.
        link: The state of their longest common end that occurs elsewhere, too (-1: the root's).
        latest: Tokens of the text up to the end of an occurrence, usually the latest.
        next: The state after one more token.
    """

    length: int
    link: int
    latest: int
    next: dict[int, int]


class SuffixIndex:
    """A suffix automaton over one text.

    Args:
        options: Shortest match, and how far it is trusted.
    """

    def __init__(self, options: SuffixOptions) -> None:
        """Start with an empty text."""
        self._options = options
        self._states = [_State(0, -1, 0, {})]
        self._last = 0
        self._num_indexed = 0
        self._match: tuple[int, int] = (0, 0)

    @property
    def num_states(self) -> int:
        """States so far, at most two per token and the root."""
        return len(self._states)

    @property
    def match(self) -> tuple[int, int]:
        """The longest end of the text that occurred before: its length, and where it ended then."""
        return self._match

    def propose(self, token_ids: Sequence[int], max_tokens: int) -> list[int]:
        """Return what followed the longest known end of the text."""
        for position in range(self._num_indexed, len(token_ids)):
            self._extend(token_ids[position])
        length, end = self._match
        if length < self._options.min_match:
            return []
        factor = self._options.max_spec_factor
        count = min(max_tokens, factor * length) if factor else max_tokens
        return copy_from(token_ids, end, count)

    def _extend(self, token: int) -> None:
        """Add a token, and note where the end of the text occurred before."""
        self._num_indexed += 1
        states, here = self._states, len(self._states)
        states.append(_State(self._num_indexed, 0, self._num_indexed, {}))
        state = self._last
        while state != -1 and token not in states[state].next:
            states[state].next[token] = here
            state = states[state].link
        if state != -1:
            states[here].link = self._state_after(state, token)
        self._last = here
        link = states[states[here].link]
        self._match = (link.length, link.latest)
        self._note_latest(here)

    def _state_after(self, state: int, token: int) -> int:
        """Return the state of this state's longest run and a token, split off if need be."""
        states = self._states
        target = states[state].next[token]
        if states[target].length == states[state].length + 1:
            return target
        old, split = states[target], len(states)
        states.append(_State(states[state].length + 1, old.link, old.latest, dict(old.next)))
        old.link = split
        while state != -1 and states[state].next.get(token) == target:
            states[state].next[token] = split
            state = states[state].link
        return split

    def _note_latest(self, state: int) -> None:
        for _ in range(_MAX_LINKS):
            state = self._states[state].link
            if state <= 0:
                return
            self._states[state].latest = self._num_indexed
