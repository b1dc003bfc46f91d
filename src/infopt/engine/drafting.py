"""Drafted tokens in a step: who proposes them, and how many of them there is room for.

A drafter guesses how an output goes on. The step computes the newest token and the guesses after
it together, and keeps those that the sampler agrees with (`infopt.engine.verification`). So a guess
costs a row of a step and never changes what an output may be.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

import torch

from infopt.engine.sequence import Sequence

if TYPE_CHECKING:
    from infopt.cache.manager import CacheManager
    from infopt.config import EngineConfig
    from infopt.engine.draft_control import DraftControl
    from infopt.engine.runner import ModelRunner
    from infopt.engine.step_plan import ScheduledSequence, StepPlan
    from infopt.models.decoder import Decoder
    from infopt.models.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True)
class DraftRequest:
    """One output that may be continued by guesses.

    Attributes:
        seq_id: Tells outputs apart.
        token_ids: Prompt and output so far; it only grows from one request to the next.
        max_tokens: Most guesses wanted, at least 1.
        sequence: The output itself, for drafters that sample as it is sampled; its form may be
            moved on while guesses are made, if it is moved back.
    """

    seq_id: int
    token_ids: SequenceOf[int]
    max_tokens: int
    sequence: Sequence | None = None


@dataclass(frozen=True, slots=True)
class Draft:
    """Guesses for one output.

    Attributes:
        token_ids: The guesses.
        laws: What each was drawn from, after everything that the sampler does to a row: weights
            ``(num_guesses, vocab_size)``, float32, not normalised. None: nothing was drawn, the
            same text always gives the same guesses.
    """

    token_ids: SequenceOf[int]
    laws: torch.Tensor | None = None

    def __len__(self) -> int:
        """Return the number of guesses."""
        return len(self.token_ids)

    def cut(self, count: int) -> Draft:
        """Return the first ``count`` guesses."""
        laws = None if self.laws is None else self.laws[:count]
        return Draft(self.token_ids[:count], laws)


Guesses = SequenceOf[int] | Draft
"""Token ids alone are guesses without probabilities."""


class Drafter(Protocol):
    """Guesses the next tokens of outputs (see `infopt.speculative`)."""

    @property
    def max_tokens(self) -> int:
        """Most tokens it guesses at once."""
        ...

    def propose(self, requests: SequenceOf[DraftRequest]) -> SequenceOf[Guesses]:
        """Return, per request, at most ``max_tokens`` ids of the model's vocabulary (or none)."""
        ...

    def forget(self, seq_id: int) -> None:
        """Drop what is remembered of an output that has ended; unknown ids are no error."""
        ...


class HiddenObserver(Protocol):
    """Looks at hidden states."""

    def observe(self, rows: list[tuple[Sequence, int]], hidden: torch.Tensor) -> None:
        """See what a step computed, before tokens are chosen from it.

        Args:
            rows: Whose token, and its position.
            hidden: Normed hidden states ``(num_rows, hidden_size)``, valid during the call.
        """
        ...


@runtime_checkable
class ModelDrafter(HiddenObserver, Protocol):
    """What a `Drafter` also has if it computes with a model; found through :func:`model_drafter`.

    Attributes:
        kv_bytes_per_token: Memory that it wants per token in the pool; a part of the pool's budget.
        num_scratch_tokens: Tokens per running sequence that it writes behind the text, in the pages
            of the model that it guesses for; pages for them are set apart.
        wants_hidden: Whether `observe` is called.
    """

    kv_bytes_per_token: float
    num_scratch_tokens: int
    wants_hidden: bool

    def attach(self, runner: ModelRunner, num_pages: int, num_tokens: int) -> None:
        """Make room beside the pool; called once, before anything runs.

        Args:
            runner: Runs the model that is guessed for.
            num_pages: Pages of its pool; those behind them in its store are the drafter's.
            num_tokens: Tokens of all sequences that its pools hold, about.
        """
        ...

    def reset_prefix_cache(self) -> None:
        """Forget prefixes that no output needs."""
        ...

    def describe(self) -> dict[str, Any]:
        """Return facts for ``LLM.stats()`` and records, as plain data."""
        ...

    def check_integrity(self) -> None:
        """Assert invariants of what it keeps."""
        ...


def model_drafter(drafter: object) -> ModelDrafter | None:
    """Return the part of a drafter that computes with a model, if there is one.

    A drafter that asks another one names it ``base``.
    """
    while not isinstance(drafter, ModelDrafter):
        drafter = getattr(drafter, "base", None)
        if drafter is None:
            return None
    return drafter


@dataclass(frozen=True, slots=True)
class DraftTarget:
    """The model that is guessed for.

    Attributes:
        config: How it runs.
        model: Its decoder.
        tokenizer: None where tokens have no text.
        identity: Identity of its weights.
        max_model_len: Longest prompt and output.
    """

    config: EngineConfig
    model: Decoder
    tokenizer: Tokenizer | None
    identity: str
    max_model_len: int


def propose_drafts(
    drafter: Drafter, control: DraftControl, running: SequenceOf[Sequence], num_waiting: int
) -> dict[Sequence, Draft]:
    """Ask for guesses for the sequences that decode; sequences without one are left out.

    The token after the last guess comes for free, so the last token an output may have is never
    guessed. This keeps guesses within ``max_model_len`` as well.

    Args:
        drafter: Guesses.
        control: Decides whom to ask, and how much of the answer to verify.
        running: Sequences that are being computed.
        num_waiting: Sequences that wait for a place among them.
    """
    if not control.wants_drafts(len(running)):
        return {}
    wanted = [s for s in running if s.is_decoding and s.num_remaining_tokens > 1]
    requests = [
        DraftRequest(s.seq_id, s.token_ids, min(drafter.max_tokens, s.num_remaining_tokens - 1), s)
        for s in wanted
    ]
    if not requests:
        return {}
    num_other_rows = sum(s.num_pending for s in running) - len(requests)
    found = control.propose(drafter, requests, num_other_rows, num_waiting)
    return {
        sequence: _as_draft(guesses).cut(request.max_tokens)
        for sequence, request, guesses in zip(wanted, requests, found, strict=True)
        if len(guesses)
    }


def _as_draft(guesses: Guesses) -> Draft:
    return guesses if isinstance(guesses, Draft) else Draft(guesses)


def add_drafts(
    plan: StepPlan, drafts: Mapping[Sequence, Draft], cache: CacheManager, budget: int
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
        draft = drafts.get(item.sequence)
        if draft is None or not item.is_decode:
            continue
        most = max(min(budget, _rows_left(item)), 0)
        draft = draft.cut(_num_that_fit(item, min(len(draft), most), cache))
        if not len(draft):
            continue
        budget -= len(draft)
        plan.scheduled[index] = dataclasses.replace(
            item,
            num_tokens=item.num_tokens + len(draft),
            draft=tuple(draft.token_ids),
            laws=draft.laws,
        )


def _rows_left(item: ScheduledSequence) -> int:
    """Return how many guesses may follow before an eviction: no step goes beyond one.

    So the same rows are evicted at the same place with guesses and without.
    """
    state = item.sequence.eviction
    room = None if state is None else state.room(item.sequence.cache)
    return item.sequence.num_remaining_tokens if room is None else room - item.num_known_tokens


def _num_that_fit(item: ScheduledSequence, wanted: int, cache: CacheManager) -> int:
    """Allocate for as many guesses as pages allow; return their number."""
    stored = item.start + item.num_tokens
    while wanted and not cache.allocate(item.sequence.cache, stored + wanted):
        wanted -= 1
    return wanted
