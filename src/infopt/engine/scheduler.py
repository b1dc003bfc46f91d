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
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from infopt.cache.manager import CacheManager
from infopt.cache.page_needs import Growth, need_to_grow, need_to_restore, need_to_start
from infopt.cache.quantized_pages import PageNeed
from infopt.config import EngineConfig
from infopt.engine.clock import MonotonicClock
from infopt.engine.draft_control import DraftControl
from infopt.engine.drafting import Drafter, add_drafts, propose_drafts
from infopt.engine.eviction_room import SwapRoom, find_prefix, rows_after_eviction
from infopt.engine.sequence import Sequence, SequenceStatus
from infopt.engine.swapping import HostPages

if TYPE_CHECKING:
    import torch

RESUME_TOKENS = 256
"""Growth that must be possible for all running sequences before a preempted one returns."""


@dataclass(frozen=True, slots=True)
class ScheduledSequence:
    """Tokens ``start .. start + num_tokens`` of a sequence are computed in this step.

    Attributes:
        sequence: Whose.
        start: Position of the first.
        num_tokens: How many, drafted ones included.
        draft: Guesses for the tokens after the newest one, computed behind it.
        laws: What they were drawn from (`infopt.engine.drafting.Draft`), if they were.
    """

    sequence: Sequence
    start: int
    num_tokens: int
    draft: tuple[int, ...] = ()
    laws: torch.Tensor | None = None

    @property
    def num_known_tokens(self) -> int:
        """Tokens to compute that belong to the sequence for certain."""
        return self.num_tokens - len(self.draft)

    @property
    def is_last_chunk(self) -> bool:
        """Whether the step reaches the newest token, whose logits give the next one."""
        return self.start + self.num_known_tokens == len(self.sequence.token_ids)

    @property
    def is_decode(self) -> bool:
        """Whether it computes exactly the newest output token (and guesses after it)."""
        return self.num_known_tokens == 1 and self.start >= self.sequence.num_prompt_tokens


@dataclass(slots=True)
class StepPlan:
    """What one step does, in the order: swap out, swap in, compute.

    Attributes:
        scheduled: Sequences to compute; single-token ones first.
        preempted: Sequences that lost their pages.
        swap_out: ``(page, host page)`` copies.
        swap_in: ``(host page, page)`` copies.
        swap_out_quantized: Copies of quantized pages.
        swap_in_quantized: Copies of quantized pages.
        num_padding_tokens: Tokens computed for nothing (``static_padded``).
        num_evicted: Rows that scheduled sequences have lost, mean over the KV groups.
    """

    scheduled: list[ScheduledSequence] = field(default_factory=list)
    preempted: list[Sequence] = field(default_factory=list)
    swap_out: list[tuple[int, int]] = field(default_factory=list)
    swap_in: list[tuple[int, int]] = field(default_factory=list)
    swap_out_quantized: list[tuple[int, int]] = field(default_factory=list)
    swap_in_quantized: list[tuple[int, int]] = field(default_factory=list)
    num_padding_tokens: int = 0
    num_evicted: dict[Sequence, int] = field(default_factory=dict)

    @property
    def num_tokens(self) -> int:
        """Tokens of sequences (padding apart)."""
        return sum(item.num_tokens for item in self.scheduled)


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
        self.host_pages = HostPages(num_swap_pages)
        self.host_quantized = HostPages(num_swap_quantized)
        self._swap_room = SwapRoom()
        self._batch: list[Sequence] = []
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
        plan.num_padding_tokens = self._num_padding_tokens(plan)
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
        self._release_host_pages(sequence)
        self._swap_room.leave(sequence)
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
            self._release_host_pages(sequence)
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
        self.host_pages.check_integrity([s.host_pages for s in self.waiting])
        self.host_quantized.check_integrity([s.host_quantized for s in self.waiting])
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
        if self.config.preemption == "swap" and not self._swap_out(victim, plan):
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
        position = 0
        for sequence in self.waiting:
            if not sequence.was_preempted or sequence.seq_id > victim.seq_id:
                break
            position += 1
        self.waiting.insert(position, victim)

    # ---------------------------------------------------------------- admission

    def _admit(self, plan: StepPlan, budget: int) -> None:
        if self.config.scheduling != "continuous":
            self._form_batch()
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

    def _form_batch(self) -> None:
        """Static scheduling: the next batch forms only when the last one has finished."""
        if self._num_finished_rows == len(self._batch):
            self._batch = list(self.waiting)[: self.config.max_num_seqs]

    def _may_start(self, sequence: Sequence) -> bool:
        if self.config.scheduling != "continuous" and sequence not in self._batch:
            return False
        leader = sequence.waits_for
        return leader is None or leader.is_finished or leader.num_output_tokens > 0

    def _start(self, sequence: Sequence, plan: StepPlan, budget: int) -> int | None:
        """Give a waiting sequence its first pages; return its tokens or None if it must wait."""
        if sequence.host_pages is not None:
            return self._swap_in(sequence, plan, budget)
        if not self._swap_room.enter(sequence, self._free_hosts, self.cache):
            return None
        keys = find_prefix(self.cache, sequence)
        reserved = rows_after_eviction(sequence)
        num_found = len(keys) * self.cache.layout.block_size
        num_tokens = min(len(sequence.token_ids) - num_found, budget)
        needed = need_to_start(self.cache, sequence.cache, keys, num_found + num_tokens)
        needed += PageNeed(sum(self.cache.num_to_reserve(len(keys), reserved)))
        num_stored = num_found + num_tokens
        if not self.cache.fits(needed + self._headroom(sequence, num_stored)):
            return None
        if keys:
            self.cache.adopt_prefix(sequence.cache, keys)
        self.cache.reserve(sequence.cache, reserved)
        allocated = self.cache.allocate(sequence.cache, num_found + num_tokens)
        assert allocated, "admission counted too few pages"
        if not sequence.was_admitted:
            sequence.was_admitted = True
            sequence.num_cached_tokens = num_found
        plan.scheduled.append(ScheduledSequence(sequence, num_found, num_tokens))
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

    # ---------------------------------------------------------------- swapping

    def _swap_out(self, victim: Sequence, plan: StepPlan) -> bool:
        """Plan the copies of a victim's pages to the host; False if there is no room."""
        cache, room = victim.cache, self._swap_room.left_for(victim, self._free_hosts)
        if cache.num_pages > room.full or not cache.num_tokens:
            return False
        if cache.num_quantized_pages > room.quantized:
            return False
        written, moves = cache.written_tables, plan.swap_out_quantized
        victim.host_pages = self.host_pages.take(cache.tables, plan.swap_out)
        victim.host_quantized = self.host_quantized.take(written, moves)
        return True

    def _swap_in(self, sequence: Sequence, plan: StepPlan, budget: int) -> int | None:
        assert sequence.host_pages is not None and sequence.host_quantized is not None
        cache, computed = sequence.cache, sequence.cache.num_tokens
        num_tokens = min(len(sequence.token_ids) - computed, budget)
        hosts, stored = (sequence.host_pages, sequence.host_quantized), computed + num_tokens
        rows = [stored - evicted for evicted in cache.num_evicted]
        reserved = rows_after_eviction(sequence)
        needed = need_to_restore(self.cache, *hosts, rows)
        needed += PageNeed(sum(self.cache.num_to_reserve(0, reserved)))
        if not self.cache.fits(needed + self._headroom(sequence, stored)):
            return None
        plan.swap_in.extend(self.cache.restore(cache, hosts[0], computed))
        plan.swap_in_quantized.extend(self.cache.restore_quantized(cache, hosts[1]))
        self.cache.reserve(cache, reserved)
        self._release_host_pages(sequence)
        allocated = self.cache.allocate(cache, computed + num_tokens)
        assert allocated, "admission counted too few pages"
        plan.scheduled.append(ScheduledSequence(sequence, computed, num_tokens))
        return num_tokens

    @property
    def _free_hosts(self) -> PageNeed:
        return PageNeed(len(self.host_pages.free), len(self.host_quantized.free))

    def _release_host_pages(self, sequence: Sequence) -> None:
        self.host_pages.give_back(sequence.host_pages)
        self.host_quantized.give_back(sequence.host_quantized)
        sequence.host_pages = sequence.host_quantized = None

    # ---------------------------------------------------------------- classic padding

    def _num_padding_tokens(self, plan: StepPlan) -> int:
        """Count what a classic fixed batch computes beside its useful tokens.

        Prompts are as long as the longest of the batch, and rows that have finished go on until the
        last one does.
        """
        if self.config.scheduling != "static_padded" or not plan.scheduled:
            return 0
        longest = max(s.num_prompt_tokens for s in self._batch)
        padding = sum(
            longest - item.sequence.num_prompt_tokens
            for item in plan.scheduled
            if item.start + item.num_tokens == item.sequence.num_prompt_tokens
        )
        if any(item.is_decode for item in plan.scheduled):
            padding += self._num_finished_rows
        return padding

    @property
    def _num_finished_rows(self) -> int:
        return sum(s.is_finished for s in self._batch)


def _count_evicted(plan: StepPlan) -> dict[Sequence, int]:
    caches = {item.sequence: item.sequence.cache.num_evicted for item in plan.scheduled}
    return {s: sum(evicted) // len(evicted) for s, evicted in caches.items() if any(evicted)}
