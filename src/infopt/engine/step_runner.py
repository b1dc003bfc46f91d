"""Runs a planned step: swap copies -> model -> tokens -> commit -> evictions."""

from __future__ import annotations

import torch

from infopt.engine.drafting import HiddenObserver, model_drafter
from infopt.engine.eviction import Evictor
from infopt.engine.parts import EngineParts
from infopt.engine.scheduler import Scheduler
from infopt.engine.sequence import Sequence
from infopt.engine.stats import StepTimer
from infopt.engine.step_plan import StepPlan
from infopt.engine.step_recorder import StepRecorder
from infopt.engine.token_chooser import TokenChooser
from infopt.engine.verification import StepTokens, wanted_rows
from infopt.outputs import FinishReason


class StepRunner:
    """Computes plans and ends what has ended.

    Args:
        parts: Loaded model and pages.
        scheduler: Made the plans, and takes their results.
        recorder: Counts.

    Attributes:
        evictor: Evicts rows after a step.
        chooser: Makes tokens of logits.
        hidden_observer: Sees the hidden states of the rows that tokens are chosen from.
    """

    def __init__(self, parts: EngineParts, scheduler: Scheduler, recorder: StepRecorder) -> None:
        """Start with no step."""
        self._scheduler, self._recorder = scheduler, recorder
        self._model = parts.runner
        model, max_positions = parts.runner.model, parts.checker.max_model_len
        self.evictor = Evictor(model, parts.cache, parts.runner.store, max_positions)
        self.chooser = TokenChooser(model, parts.tokenizer)
        drafter = model_drafter(parts.drafter)
        wants_hidden = drafter is not None and drafter.wants_hidden
        self.hidden_observer: HiddenObserver | None = drafter if wants_hidden else None
        self._taken = StepTokens()

    def run(self, plan: StepPlan, timer: StepTimer) -> list[Sequence]:
        """Compute a plan and take its results.

        Args:
            plan: The step.
            timer: Gets its parts.

        Returns:
            The sequences that have something new.
        """
        taken = self._taken = StepTokens.of(plan)
        recorder, counts = self._recorder, self._recorder.expert_counts
        recorder.sequences_started(plan, timer.now())
        self._model.swap(plan)
        rows, wanted = wanted_rows(plan)
        ctx = self._model.build(plan, rows)
        self.evictor.prepare(plan, ctx, recorder.stats)
        if counts is not None:
            counts.prepare(ctx, self._model.device)
        timer.scheduled()
        hidden = self._model.hidden(ctx)
        if self.hidden_observer is not None:
            self.hidden_observer.observe(wanted, hidden)
        if wanted:
            self._choose_tokens(hidden, wanted, timer)
        timer.forwarded()
        num_kept = taken.num_kept()
        self.evictor.before_commit(plan, ctx, num_kept)
        self._scheduler.commit(plan, num_kept)
        self._end_outputs(plan, timer)
        self.evictor.after_step(plan, recorder.stats)
        if counts is not None:
            counts.add_step(plan, ctx)
        timer.sampled()
        recorder.step_ended(plan, len(wanted), timer, taken)
        sequences = [item.sequence for item in plan.scheduled]
        return [s for s in sequences if s in taken.new or s.is_finished]

    def drop(self, plan: StepPlan, now_s: float) -> list[Sequence]:
        """End the sequences of a step that failed, and return them.

        Some may have got their last token before the failure: they keep their reason.
        """
        lost = self._scheduler.forget_copies(plan)
        sequences = [*(item.sequence for item in plan.scheduled), *lost]
        for sequence in sequences:
            self._recorder.tokens_made(sequence, now_s)
            if not sequence.is_finished:
                self.finish(sequence, self._taken.ending.get(sequence, "error"), now_s)
        return sequences

    def finish(self, sequence: Sequence, reason: FinishReason, now_s: float) -> None:
        """End a sequence in any state; its pages are free at once."""
        self._scheduler.finish(sequence)
        self._recorder.sequence_ended(sequence, reason, now_s)

    def _choose_tokens(
        self, hidden: torch.Tensor, wanted: list[tuple[Sequence, int]], timer: StepTimer
    ) -> None:
        """Take the logits of all rows, block by block."""
        done = 0
        for logits in self._model.logit_blocks(hidden):
            timer.forwarded()
            block = wanted[done : done + logits.shape[0]]
            done += len(block)
            self.chooser.take(logits, block, self._taken)
            del logits  # else the next block is made beside this one
            timer.sampled()

    def _end_outputs(self, plan: StepPlan, timer: StepTimer) -> None:
        """Note when the new tokens were there, which is when all were, and finish what ended."""
        now, taken = timer.now(), self._taken
        for item in plan.scheduled:
            sequence, metrics = item.sequence, item.sequence.metrics
            if sequence in taken.new:
                self._recorder.tokens_made(sequence, now)
                if metrics.first_token_s is None:
                    metrics.first_token_s = now
            elif item.is_last_chunk and not sequence.max_tokens:
                self.finish(sequence, "length", now)
            if sequence in taken.ending:
                self.finish(sequence, taken.ending[sequence], now)
