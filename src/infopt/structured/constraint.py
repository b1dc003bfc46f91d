"""`GrammarConstraint`: a compiled grammar following one completion."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import numpy as np
import torch

if TYPE_CHECKING:
    from llguidance import LLMatcher

logger = logging.getLogger(__name__)


class GrammarConstraint:
    """Says which tokens a grammar allows next (an `infopt.engine.constraint.TokenConstraint`).

    Args:
        matcher: At the beginning of the output, and used by nobody else.
        num_tokens: Size of the vocabulary.
    """

    def __init__(self, matcher: LLMatcher, num_tokens: int) -> None:
        """Start at the beginning."""
        self._matcher, self._num_tokens = matcher, num_tokens

    @property
    def is_terminated(self) -> bool:
        """Whether the output is complete and nothing may follow."""
        return self._matcher.is_stopped()

    def allowed(self) -> torch.Tensor:
        """Return which tokens may come next, bool ``(num_tokens,)``."""
        if self._matcher.is_error():
            return torch.ones(self._num_tokens, dtype=torch.bool)  # `accept` will report it
        packed = np.frombuffer(self._matcher.compute_bitmask(), dtype=np.uint8)
        bits = np.unpackbits(packed, count=self._num_tokens, bitorder="little")
        return torch.from_numpy(bits).bool()

    def accept(self, token_id: int) -> bool:
        """Take the next token; False if it was not allowed or the grammar is too complex."""
        if self._matcher.consume_token(token_id):
            return True
        reason = self._matcher.get_error().partition("\n")[0]
        logger.warning("a grammar could not follow its output: %s", reason)
        return False

    def rollback(self, num_tokens: int) -> None:
        """Take back the newest tokens."""
        if num_tokens:
            self._matcher.rollback(num_tokens)
