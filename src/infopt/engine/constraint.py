"""`TokenConstraint`: what may come next in one completion, decided outside the engine."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import torch


class TokenConstraint(Protocol):
    """Follows one completion and says which tokens may continue it.

    It must not raise: a constraint that fails lets ``accept`` return False, which ends its own
    completion with reason ``error`` and leaves the rest of the batch alone.
    """

    @property
    def is_terminated(self) -> bool:
        """Whether the output is complete and nothing may follow."""
        ...

    def allowed(self) -> torch.Tensor:
        """Return which tokens may come next, bool ``(num_tokens,)``; ids beyond it may not."""
        ...

    def accept(self, token_id: int) -> bool:
        """Take the next token; False if it was not allowed (or the constraint has failed)."""
        ...

    def rollback(self, num_tokens: int) -> None:
        """Take back the newest tokens, as when drafted ones are rejected."""
        ...


ConstraintFactory = Callable[[], TokenConstraint]
"""Makes a fresh constraint for each completion of a request."""
