"""Chooses what each step computes: plain Python over plain data, no tensors.

Life of a sequence: waiting -> running -> finished, with preemption back to the front of waiting.

Rules, in the order they act in a step:
1. Running sequences come first, decodes before prefill chunks, older before younger.
2. Where a running sequence finds no page, the youngest running one is preempted, in the end itself.
3. Waiting sequences are admitted in order of arrival, as long as sequences, tokens and pages allow.
   Nobody overtakes: the first that does not fit ends admission.
4. A step that preempted admits nobody, and a preempted sequence returns only when everyone running
   could finish (or grow by ``RESUME_TOKENS``) beside it; otherwise two sequences that fit alone but
   not together would preempt each other for ever.
5. Drafted tokens take what tokens and pages are left then, and give unneeded pages back at commit.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from itertools import takewhile

from infopt.cache.manager import CacheManager
from infopt.cache.page_needs import Growth, need_to_grow, need_to_start
from infopt.cache.quantized_pages import PageNeed
from infopt.config import EngineConfig
from infopt.engine.clock import MonotonicClock
from infopt.engine.draft_control import DraftControl
from infopt.engine.drafting import Drafter, add_drafts, propose_drafts
from infopt.engine.eviction_room import find_prefix, rows_after_eviction
from infopt.engine.sequence import Sequence, SequenceStatus
from infopt.engine.static_batch import StaticBatch
from infopt.engine.step_plan import ScheduledSequence, StepPlan
from infopt.engine.swapping import SwapSpace

RESUME_TOKENS = 256
"""Growth that must be possible for all running sequences before a preempted one returns."""


class Scheduler:
    """Owns the queues; decides, allocates, and takes results back.

    Args:
        config: Limits and policies.
        cache: Pages.
        num_swap_pages: Host pages for ``preemption="swap"``.
        drafter: Guesses tokens; None never does.
        num_swap_quantized: Host pages for quantized pages.
        control: Decides how many; None lets the drafter.
    """

    def __init__(
        self,
        config: EngineConfig,
        cache: CacheManager,
        num_swap_pages: int = 0,
        drafter: Drafter | None = None,
        num_swap_quantized: int = 0,
        control: DraftControl | None = None,
    ) -> None:
        """Start with empty queues."""
        self.config, self.cache, self.drafter = config, cache, drafter
        self.control = control or DraftControl(MonotonicClock())
        self.waiting: deque[Sequence] = deque()
        self.running: list[Sequence] = []
        self.swap = SwapSpace(cache, PageNeed(num_swap_pages, num_swap_quantized))
        self._batch = None if config.scheduling == "continuous" else StaticBatch(config)
        self.num_swap_fallbacks = 0
        """Preemptions that recomputed because host memory for swapping was full."""

    @property
    def has_unfinished(self) -> bool:
        """Whether anything is waiting or running."""
        return bool(self.waiting or self.running)

    def add(self, sequence: Sequence) -> None:
        """Queue a new sequence."""
        self.waiting.append(sequence)

    def schedule(self) -> StepPlan:
        """Choose the next step."""
        # First of all: a drafter that fails must not leave a step half made.
        drafts = {}
        if self.drafter is not None:
            drafts = propose_drafts(self.drafter, self.control, self.running, len(self.waiting))
        plan = StepPlan()
        budget = self._schedule_running(plan, self.config.max_num_batched_tokens)
        if not plan.preempted:
            self._admit(plan, budget)
        if drafts:
            left = self.config.max_num_batched_tokens - plan.num_tokens
            add_drafts(plan, drafts, self.cache, left)
        plan.scheduled.sort(key=lambda item: (item.num_tokens > 1, item.sequence.seq_id))
        if self._batch is not None:
            plan.num_padding_tokens = self._batch.num_padding_tokens(plan)
        plan.num_evicted = _count_evicted(plan)
        return plan

    def commit(self, plan: StepPlan, num_kept: Mapping[Sequence, int] | None = None) -> None:
        """Note that the planned tokens are computed.

        Args:
            plan: The step.
            num_kept: Drafted tokens that became part of their sequence (and are appended to it);
                the others are forgotten.
        """
        for item in plan.scheduled:
            sequence = item.sequence
            if not sequence.is_finished:
                kept = num_kept.get(sequence, 0) if num_kept else 0
                num_stored = item.start + item.num_known_tokens + kept
                will_evict = sequence.eviction is not None
                self.cache.commit(
                    sequence.cache, sequence.token_ids, num_stored, will_evict=will_evict
                )

    def finish(self, sequence: Sequence) -> None:
        """Take a sequence out of its queue and free its pages; safe in every state."""
        if sequence.status is SequenceStatus.RUNNING:
            self.running.remove(sequence)
        elif sequence.status is SequenceStatus.WAITING:
            self.waiting.remove(sequence)
        sequence.status = SequenceStatus.FINISHED
        self.cache.free(sequence.cache)
        self.swap.leave(sequence)
        sequence.eviction = None
        if self.drafter is not None:
            self.drafter.forget(sequence.seq_id)
            self.control.forget(sequence.seq_id)

    def forget_copies(self, plan: StepPlan) -> list[Sequence]:
        """Compute what a failed step swapped out again: nobody knows if its copies were made.

        Returns:
            Those that cannot be computed again, since rows of theirs were evicted.
        """
        lost = [sequence for sequence in plan.preempted if sequence.cache.is_evicted]
        for sequence in plan.preempted:
            self.swap.release(sequence)
            self.cache.free(sequence.cache)
            if sequence.eviction is not None:
                sequence.eviction.reset()
        return lost

    def check_integrity(self) -> None:
        """Assert the invariants of pages and queues."""
        self.cache.check_integrity()
        assert all(s.status is SequenceStatus.RUNNING for s in self.running)
        assert all(s.status is SequenceStatus.WAITING for s in self.waiting)
        assert all(s.cache.num_pages == 0 for s in self.waiting)
        assert all(s.cache.num_quantized_pages == 0 for s in self.waiting)
        assert all(s.host_pages is not None or not s.cache.num_tokens for s in self.waiting)
        self.swap.check_integrity(self.waiting)
        if not self.has_unfinished:
            assert self.cache.num_used_pages == PageNeed(), "pages are used but nothing is running"

    # ---------------------------------------------------------------- running sequences

    def _schedule_running(self, plan: StepPlan, budget: int) -> int:
        """Schedule running sequences; return what is left of the token budget."""
        chosen: dict[Sequence, ScheduledSequence] = {}
        for sequence in sorted(self.running, key=lambda s: (not s.is_decoding, s.seq_id)):
            num_tokens = min(sequence.num_pending, budget)
            if not num_tokens or sequence.status is not SequenceStatus.RUNNING:
                continue
            start = sequence.cache.num_tokens
            while not self.cache.allocate(sequence.cache, start + num_tokens):
                victim = max(self.running, key=lambda s: s.seq_id)
                self._preempt(victim, plan)
                undone = chosen.pop(victim, None)
                budget += undone.num_tokens if undone else 0
                if victim is sequence:
                    break
            else:
                chosen[sequence] = ScheduledSequence(sequence, start, num_tokens)
                budget -= num_tokens
        plan.scheduled.extend(chosen.values())
        return budget

    def _preempt(self, victim: Sequence, plan: StepPlan) -> None:
        if self.config.preemption == "swap" and not self.swap.swap_out(victim, plan):
            self.num_swap_fallbacks += 1
        computed, evicted = victim.cache.num_tokens, victim.cache.num_evicted
        self.cache.free(victim.cache)
        if victim.host_pages is not None:
            victim.cache.num_tokens, victim.cache.num_evicted = computed, evicted
        elif victim.eviction is not None:
            assert not any(evicted), "evicted rows cannot be computed again"
            victim.eviction.reset()
        victim.status = SequenceStatus.WAITING
        victim.was_preempted = True
        victim.metrics.num_preemptions += 1
        self.running.remove(victim)
        self._return_to_queue(victim)
        plan.preempted.append(victim)

    def _return_to_queue(self, victim: Sequence) -> None:
        """Insert among the other preempted ones at the front, in order of arrival."""
        ahead = takewhile(lambda s: s.was_preempted and s.seq_id < victim.seq_id, self.waiting)
        self.waiting.insert(sum(1 for _ in ahead), victim)

    # ---------------------------------------------------------------- admission

    def _admit(self, plan: StepPlan, budget: int) -> None:
        if self._batch is not None:
            self._batch.form(self.waiting)
        while self.waiting and len(self.running) < self.config.max_num_seqs and budget > 0:
            sequence = self.waiting[0]
            if not self._may_start(sequence):
                break
            num_tokens = self._start(sequence, plan, budget)
            if num_tokens is None:
                break
            self.waiting.popleft()
            sequence.status = SequenceStatus.RUNNING
            self.running.append(sequence)
            budget -= num_tokens

    def _may_start(self, sequence: Sequence) -> bool:
        if self._batch is not None and sequence not in self._batch:
            return False
        leader = sequence.waits_for
        return leader is None or leader.is_finished or leader.num_output_tokens > 0

    def _start(self, sequence: Sequence, plan: StepPlan, budget: int) -> int | None:
        """Give a waiting sequence its first pages; return its tokens or None if it must wait."""
        if sequence.host_pages is not None:
            return self._return(sequence, plan, budget)
        if not self.swap.enter(sequence):
            return None
        keys = find_prefix(self.cache, sequence)
        reserved = rows_after_eviction(sequence)
        num_found = len(keys) * self.cache.layout.block_size
        num_tokens = min(len(sequence.token_ids) - num_found, budget)
        num_stored = num_found + num_tokens
        needed = need_to_start(self.cache, sequence.cache, keys, num_stored)
        needed += PageNeed(sum(self.cache.num_to_reserve(len(keys), reserved)))
        if not self.cache.fits(needed + self._headroom(sequence, num_stored)):
            return None
        if keys:
            self.cache.adopt_prefix(sequence.cache, keys)
        if not sequence.was_admitted:
            sequence.was_admitted = True
            sequence.num_cached_tokens = num_found
        return self._begin(sequence, plan, num_tokens, reserved)

    def _return(self, sequence: Sequence, plan: StepPlan, budget: int) -> int | None:
        """Bring a swapped-out sequence back; see :meth:`_start`."""
        computed = sequence.cache.num_tokens
        num_tokens = min(len(sequence.token_ids) - computed, budget)
        reserved = rows_after_eviction(sequence)
        needed = self.swap.need_to_return(sequence, computed + num_tokens)
        needed += PageNeed(sum(self.cache.num_to_reserve(0, reserved)))
        if not self.cache.fits(needed + self._headroom(sequence, computed + num_tokens)):
            return None
        self.swap.swap_in(sequence, plan)
        return self._begin(sequence, plan, num_tokens, reserved)

    def _begin(
        self, sequence: Sequence, plan: StepPlan, num_tokens: int, reserved: list[int]
    ) -> int:
        """Schedule the first tokens of a sequence whose pages were counted; return how many."""
        start = sequence.cache.num_tokens
        self.cache.reserve(sequence.cache, reserved)
        allocated = self.cache.allocate(sequence.cache, start + num_tokens)
        assert allocated, "admission counted too few pages"
        plan.scheduled.append(ScheduledSequence(sequence, start, num_tokens))
        return num_tokens

    def _headroom(self, sequence: Sequence, num_stored: int) -> PageNeed:
        """Return the pages that must stay available beside a newly admitted sequence.

        Args:
            sequence: The one to admit.
            num_stored: Tokens it holds after its first chunk.
        """
        if not self.running:
            return PageNeed()
        held = [(other, other.cache.num_tokens) for other in self.running]
        if not sequence.was_preempted:  # everyone can cross one page border
            return need_to_grow(self.cache, (Growth(stored, 1) for _, stored in held))
        return need_to_grow(
            self.cache,
            (
                Growth(
                    stored,
                    len(other.token_ids) - stored,
                    min(other.num_remaining_tokens, RESUME_TOKENS),
                )
                for other, stored in (*held, (sequence, num_stored))
            ),
        )


def _count_evicted(plan: StepPlan) -> dict[Sequence, int]:
    caches = {item.sequence: item.sequence.cache.num_evicted for item in plan.scheduled}
    return {s: sum(evicted) // len(evicted) for s, evicted in caches.items() if any(evicted)}
