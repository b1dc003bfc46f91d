"""Tokens to text, one at a time, exact to the byte, with stop strings.

Text is made from the bytes of the tokens, so a character that is spread over several tokens appears
once it is complete, and bytes that never become one appear as a single replacement mark at the end.
Text that may turn out to be the beginning of a stop string is held back, and nothing else is.
"""

from __future__ import annotations

import codecs
from typing import Protocol

from infopt.sampling_params import SamplingParams


class TokenBytes(Protocol):
    """The part of a tokenizer that is needed here."""

    def token_bytes(self, token_id: int) -> bytes:
        """Return the exact bytes of a token."""
        ...

    def is_special(self, token_id: int) -> bool:
        """Whether a token is a special one."""
        ...


class Detokenizer:
    """Text of one completion.

    Args:
        tokenizer: Gives the bytes of tokens.
        params: Stop strings and what to show.

    Attributes:
        text: What may be shown so far; it only grows.
        stop_string: The stop string that was met, or None.
    """

    def __init__(self, tokenizer: TokenBytes, params: SamplingParams) -> None:
        """Start with empty text."""
        self._tokenizer, self._params = tokenizer, params
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._all = ""
        self.text = ""
        self.stop_string: str | None = None

    def append(self, token_id: int, *, check_stops: bool = True) -> bool:
        """Add a token; return whether a stop string is met.

        Args:
            token_id: The new token.
            check_stops: False before ``min_tokens`` are reached.
        """
        if self._params.skip_special_tokens and self._tokenizer.is_special(token_id):
            return False
        new = self._decoder.decode(self._tokenizer.token_bytes(token_id))
        self._all += new
        if check_stops and self._params.stop and self._cut_at_stop(len(new)):
            return True
        self.text = self._all[: len(self._all) - self._num_held_back()]
        return False

    def finish(self) -> None:
        """Show what was held back and flush an unfinished character."""
        if self.stop_string is None:
            self._all += self._decoder.decode(b"", final=True)
            self.text = self._all

    def _cut_at_stop(self, num_new: int) -> bool:
        """Cut the text at the stop string that is complete first in the new characters.

        Of several that end there the longest counts, so the cut does not depend on how the text is
        split into tokens. The search never goes back to a stop string that ended before: that one
        was passed over (``min_tokens``) and may have been shown.
        """
        old = len(self._all) - num_new
        found = [
            (at + len(stop), at, stop)
            for stop in self._params.stop
            if (at := self._all.find(stop, max(old - len(stop) + 1, 0))) >= 0
        ]
        if not found:
            return False
        end, start, self.stop_string = min(found)
        self.text = self._all[: end if self._params.include_stop_str_in_output else start]
        return True

    def _num_held_back(self) -> int:
        """Return the length of the longest suffix that begins some stop string."""
        longest = 0
        for stop in self._params.stop:
            for size in range(min(len(stop) - 1, len(self._all)), longest, -1):
                if self._all.endswith(stop[:size]):
                    longest = size
                    break
        return longest
