"""Counters of the engine: one record per step, and totals since the start."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from infopt.engine.clock import Clock

if TYPE_CHECKING:
    from infopt.engine.draft_control import StepOutcome
    from infopt.engine.scheduler import Scheduler
    from infopt.engine.step_plan import StepPlan


@dataclass(frozen=True, slots=True)
class StepStats:
    """What one engine step did; enough to count its bytes and FLOPs afterwards.

    Attributes:
        start_s: Clock reading at the start of the step.
        duration_s: Whole step, scheduling and sampling included.
        schedule_s: Choosing the batch and building its tensors.
        forward_s: Model forward, logits included.
        sample_s: Sampling, detokenizing and committing.
        num_seqs: Sequences in the batch.
        num_prefill_tokens: Prompt tokens computed (recomputed ones included).
        num_decode_tokens: Sequences that computed one new token.
        num_padding_tokens: Tokens computed for nothing (``static_padded``).
        num_logit_rows: Rows for which the output head ran.
        num_attention_pairs: Sum over computed tokens of the keys each may see (full layers).
        num_window_pairs: The same under the sliding window (0 without window layers).
        num_context_tokens: Sum over sequences of the KV rows read (full layers).
        num_window_tokens: The same for window layers.
        num_running: Running sequences after the step.
        num_waiting: Waiting sequences after the step.
        num_pages_used: Pages referenced after the step.
        num_tokens_in_pages: Tokens stored in referenced pages (for fragmentation).
        num_preemptions: Preemptions in this step.
        num_draft_tokens: Drafted tokens computed to be verified.
        num_accepted_tokens: Of those, tokens that became output.
        draft_s: Proposing them, a part of ``schedule_s``.
    """

    start_s: float
    duration_s: float
    schedule_s: float
    forward_s: float
    sample_s: float
    num_seqs: int
    num_prefill_tokens: int
    num_decode_tokens: int
    num_padding_tokens: int
    num_logit_rows: int
    num_attention_pairs: int
    num_window_pairs: int
    num_context_tokens: int
    num_window_tokens: int
    num_running: int
    num_waiting: int
    num_pages_used: int
    num_tokens_in_pages: int
    num_preemptions: int
    num_draft_tokens: int = 0
    num_accepted_tokens: int = 0
    draft_s: float = 0.0

    @property
    def num_new_rows(self) -> int:
        """Tokens whose keys and values were computed."""
        return self.num_prefill_tokens + self.num_decode_tokens + self.num_draft_tokens

    @property
    def num_tokens(self) -> int:
        """All tokens that went through the model."""
        return self.num_new_rows + self.num_padding_tokens


@dataclass(slots=True)
class EngineStats:
    """Totals since the engine started (or since ``reset``).

    Attributes:
        num_requests: Requests added.
        num_finished: Sequences that ended, by finish reason.
        num_prompt_tokens: Prompt tokens of admitted sequences.
        num_cached_tokens: Of those, tokens found in the prefix cache.
        num_generated_tokens: Output tokens.
        num_preemptions: Times a sequence lost its pages.
        num_steps: Steps with work.
        num_evictions: Times rows of a sequence were evicted.
        kv_freed_bytes: Bytes of the pages that evictions gave back to the pool.
        num_query_steps: Steps that kept queries for a press to read.
    """

    num_requests: int = 0
    num_finished: dict[str, int] = field(default_factory=dict)
    num_prompt_tokens: int = 0
    num_cached_tokens: int = 0
    num_generated_tokens: int = 0
    num_preemptions: int = 0
    num_steps: int = 0
    num_evictions: int = 0
    kv_freed_bytes: int = 0
    num_query_steps: int = 0

    @property
    def prefix_hit_rate(self) -> float | None:
        """Cached share of all prompt tokens (None before the first prompt)."""
        return self.num_cached_tokens / self.num_prompt_tokens if self.num_prompt_tokens else None


class StepTimer:
    """Splits the time of a step into scheduling, model and sampling.

    Args:
        clock: Source of time; the device must be idle when the marks are set.
    """

    def __init__(self, clock: Clock) -> None:
        """Start the step."""
        self._clock = clock
        self.start_s = self._last = clock.now()
        self.schedule_s = self.forward_s = self.sample_s = 0.0

    def now(self) -> float:
        """Return the time, which no part ends with."""
        return self._clock.now()

    def scheduled(self) -> None:
        """Mark the end of a scheduling part."""
        self.schedule_s += self._lap()

    def forwarded(self) -> None:
        """Mark the end of a model part."""
        self.forward_s += self._lap()

    def sampled(self) -> None:
        """Mark the end of a sampling part."""
        self.sample_s += self._lap()

    @property
    def total_s(self) -> float:
        """Time since the start, up to the last mark."""
        return self._last - self.start_s

    def _lap(self) -> float:
        now = self._clock.now()
        lap, self._last = now - self._last, now
        return lap


def count_step(
    plan: StepPlan,
    scheduler: Scheduler,
    num_logit_rows: int,
    timer: StepTimer,
    outcome: StepOutcome | None = None,
) -> StepStats:
    """Describe a step that has just been computed.

    Args:
        plan: What was computed.
        scheduler: Queues and pages after it.
        num_logit_rows: Rows of the output head.
        timer: Its parts.
        outcome: What became of its drafted tokens (None: there is no drafter).
    """
    groups = scheduler.cache.layout.groups
    window = next((g.window for g in groups if g.window is not None), None)
    spans = [
        (item.start - plan.num_evicted.get(item.sequence, 0), item.num_tokens)
        for item in plan.scheduled
    ]
    num_decodes = sum(item.is_decode for item in plan.scheduled)
    num_drafted = sum(len(item.draft) for item in plan.scheduled)
    return StepStats(
        start_s=timer.start_s,
        duration_s=timer.total_s,
        schedule_s=timer.schedule_s,
        forward_s=timer.forward_s,
        sample_s=timer.sample_s,
        num_seqs=len(plan.scheduled),
        num_prefill_tokens=plan.num_tokens - num_decodes - num_drafted,
        num_decode_tokens=num_decodes,
        num_padding_tokens=plan.num_padding_tokens,
        num_logit_rows=num_logit_rows,
        num_attention_pairs=sum(attention_pairs(start, n) for start, n in spans),
        num_window_pairs=sum(attention_pairs(start, n, window) for start, n in spans)
        if window
        else 0,
        num_context_tokens=sum(start + n for start, n in spans),
        num_window_tokens=sum(min(start + n, window + n - 1) for start, n in spans)
        if window
        else 0,
        num_running=len(scheduler.running),
        num_waiting=len(scheduler.waiting),
        num_pages_used=scheduler.cache.pool.num_used,
        num_tokens_in_pages=scheduler.cache.num_stored_tokens(),
        num_preemptions=len(plan.preempted),
        num_draft_tokens=num_drafted,
        num_accepted_tokens=sum(p.num_accepted for p in outcome.passes) if outcome else 0,
        draft_s=outcome.draft_s if outcome else 0.0,
    )


def attention_pairs(start: int, num_tokens: int, window: int | None = None) -> int:
    """Return the sum of the keys that tokens ``start .. start + num_tokens`` may see."""
    if window is None:
        return num_tokens * start + num_tokens * (num_tokens + 1) // 2
    return sum(min(position + 1, window) for position in range(start, start + num_tokens))
