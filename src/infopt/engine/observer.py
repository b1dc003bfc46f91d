"""Lets others watch the engine's steps: what each request had done in it (energy, audits, ...).

The engine knows nothing of who watches; observers are put into ``Engine.observers``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from infopt.engine.stats import StepStats, attention_pairs
from infopt.engine.step_plan import ScheduledSequence, StepPlan


@dataclass(frozen=True, slots=True)
class StepShare:
    """What a step computed for one sequence of a request.

    Attributes:
        request_id: Whose.
        num_prefill_tokens: Prompt tokens (and tokens computed again after a preemption).
        num_decode_tokens: The newest token and the guesses after it.
        num_prefill_pairs: Sum over the prefill tokens of the keys each may see (full layers).
        num_decode_pairs: The same over the decode tokens.
    """

    request_id: str
    num_prefill_tokens: int = 0
    num_decode_tokens: int = 0
    num_prefill_pairs: int = 0
    num_decode_pairs: int = 0


class StepObserver(Protocol):
    """Is told about steps, on the thread that runs the engine; must not raise."""

    def step_started(self) -> None:
        """A step begins; nothing of it has run."""
        ...

    def step_ended(self, step: StepStats, shares: Sequence[StepShare]) -> None:
        """A step has succeeded and its tokens are known; requests may have ended with it.

        Args:
            step: The whole of it.
            shares: One entry per sequence in it.
        """
        ...


def step_shares(plan: StepPlan) -> list[StepShare]:
    """Return what a step computes for each of its sequences."""
    return [_share(item) for item in plan.scheduled]


def _share(item: ScheduledSequence) -> StepShare:
    request_id = item.sequence.request_id
    pairs = attention_pairs(item.start, item.num_tokens)
    if item.is_decode:
        return StepShare(request_id, num_decode_tokens=item.num_tokens, num_decode_pairs=pairs)
    return StepShare(request_id, num_prefill_tokens=item.num_tokens, num_prefill_pairs=pairs)
