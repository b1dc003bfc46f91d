"""Drafted tokens in a step: who proposes them, and how many of them there is room for.

A drafter guesses how an output goes on. The step computes the newest token and the guesses after
it together, and keeps those that the sampler chooses itself (`infopt.engine.verification`). So a
guess costs a row of a step and never changes an output.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from infopt.engine.sequence import Sequence

if TYPE_CHECKING:
    from infopt.cache.manager import CacheManager
    from infopt.engine.scheduler import ScheduledSequence, StepPlan


@dataclass(frozen=True, slots=True)
class DraftRequest:
    """One output that may be continued by guesses.

    Attributes:
        seq_id: Tells outputs apart.
        token_ids: Prompt and output so far; it only grows from one request to the next.
        max_tokens: Most guesses wanted, at least 1.
    """

    seq_id: int
    token_ids: SequenceOf[int]
    max_tokens: int


class Drafter(Protocol):
    """Guesses the next tokens of outputs (see `infopt.speculative`)."""

    @property
    def max_tokens(self) -> int:
        """Most tokens it guesses at once."""
        ...

    def propose(self, requests: SequenceOf[DraftRequest]) -> list[list[int]]:
        """Return, per request, at most ``max_tokens`` ids of the model's vocabulary (or none)."""
        ...

    def forget(self, seq_id: int) -> None:
        """Drop what is remembered of an output that has ended; unknown ids are no error."""
        ...


def propose_drafts(drafter: Drafter, running: SequenceOf[Sequence]) -> dict[Sequence, list[int]]:
    """Ask for guesses for every sequence that decodes; sequences without one are left out.

    The token after the last guess comes for free, so the last token an output may have is never
    guessed. This keeps guesses within ``max_model_len`` as well.
    """
    wanted = [s for s in running if s.is_decoding and s.num_remaining_tokens > 1]
    requests = [
        DraftRequest(s.seq_id, s.token_ids, min(drafter.max_tokens, s.num_remaining_tokens - 1))
        for s in wanted
    ]
    if not requests:
        return {}
    drafts = drafter.propose(requests)
    return {
        sequence: draft[: request.max_tokens]
        for sequence, request, draft in zip(wanted, requests, drafts, strict=True)
        if draft
    }


def add_drafts(
    plan: StepPlan, drafts: Mapping[Sequence, list[int]], cache: CacheManager, budget: int
) -> None:
    """Put guesses into what is left of a step, older sequences first.

    Everything else in the step has its tokens and pages already, so guesses never preempt or delay
    anybody: where tokens or pages run out there are fewer of them.

    Args:
        plan: Changed in place.
        drafts: Guesses of some of its sequences.
        cache: Gives pages; those of rejected guesses come back with the commit.
        budget: Tokens left in the step.
    """
    for index, item in enumerate(plan.scheduled):
        draft = drafts.get(item.sequence, [])[: max(budget, 0)]
        if not draft or not item.is_decode:
            continue
        draft = draft[: _num_that_fit(item, len(draft), cache)]
        budget -= len(draft)
        plan.scheduled[index] = dataclasses.replace(
            item, num_tokens=item.num_tokens + len(draft), draft=tuple(draft)
        )


def _num_that_fit(item: ScheduledSequence, wanted: int, cache: CacheManager) -> int:
    """Allocate for as many guesses as pages allow; return their number."""
    stored = item.start + item.num_tokens
    while wanted and not cache.allocate(item.sequence.cache, stored + wanted):
        wanted -= 1
    return wanted
