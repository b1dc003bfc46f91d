"""Counts what steps do, and tells those who watch."""

from __future__ import annotations

from infopt.config import EngineConfig
from infopt.engine.draft_control import StepOutcome
from infopt.engine.draft_stats import DraftStats
from infopt.engine.expert_counts import ExpertCounts
from infopt.engine.observer import StepObserver, step_shares
from infopt.engine.scheduler import Scheduler
from infopt.engine.sequence import Sequence
from infopt.engine.stats import EngineStats, StepStats, StepTimer, count_step
from infopt.engine.step_plan import StepPlan
from infopt.engine.verification import StepTokens
from infopt.models.config import ModelConfig
from infopt.outputs import FinishReason


class StepRecorder:
    """Totals over all steps, and a description of each where somebody wants it.

    Args:
        config: Whether experts are counted (``expert_stats``).
        scheduler: Queues and pages of the engine.
        model_config: The model's configuration; one that is not ours has no experts to count.

    Attributes:
        stats: Totals.
        draft_stats: What became of drafted tokens; None where none are drafted.
        expert_counts: Where tokens went; None where they are not counted.
        step_log: Gets each step; None keeps none.
        observers: Are told each step.
    """

    def __init__(self, config: EngineConfig, scheduler: Scheduler, model_config: object) -> None:
        """Start at zero."""
        self._moe = None
        if config.expert_stats and isinstance(model_config, ModelConfig):
            self._moe = model_config.moe
        self._scheduler = scheduler
        self.step_log: list[StepStats] | None = None
        self.observers: list[StepObserver] = []
        self.reset()

    def reset(self) -> None:
        """Count anew; what a control has learned stays."""
        self.stats = EngineStats()
        self.draft_stats = DraftStats() if self._scheduler.drafter is not None else None
        self.expert_counts = None if self._moe is None else ExpertCounts(self._moe)
        self._scheduler.control.reset_counts()

    def step_started(self) -> None:
        """Tell observers that a step begins."""
        for observer in self.observers:
            observer.step_started()

    def sequences_started(self, plan: StepPlan, now_s: float) -> None:
        """Note the sequences that a step computes for the first time."""
        for item in plan.scheduled:
            if item.sequence.metrics.first_scheduled_s is None:
                item.sequence.metrics.first_scheduled_s = now_s
                self.stats.num_prompt_tokens += item.sequence.num_prompt_tokens
                self.stats.num_cached_tokens += item.sequence.num_cached_tokens

    def tokens_made(self, sequence: Sequence, now_s: float) -> None:
        """Note the output tokens of a sequence that have no time yet."""
        times = sequence.metrics.token_times_s
        num_new = sequence.num_output_tokens - len(times)
        times.extend([now_s] * num_new)
        self.stats.num_generated_tokens += num_new

    def sequence_ended(self, sequence: Sequence, reason: FinishReason, now_s: float) -> None:
        """Note that a sequence has ended."""
        sequence.finish_reason, sequence.metrics.finished_s = reason, now_s
        self.stats.num_finished[reason] = self.stats.num_finished.get(reason, 0) + 1

    def step_ended(
        self, plan: StepPlan, num_rows: int, timer: StepTimer, taken: StepTokens
    ) -> None:
        """Count a step that has succeeded, and tell observers.

        Args:
            plan: What was computed.
            num_rows: Rows of the output head.
            timer: Its parts.
            taken: Its tokens.
        """
        self.stats.num_steps += 1
        self.stats.num_preemptions += len(plan.preempted)
        outcome = self._note_drafts(plan, timer, taken)
        if self.step_log is None and not self.observers:
            return
        step = count_step(plan, self._scheduler, num_rows, timer, outcome)
        if self.step_log is not None:
            self.step_log.append(step)
        for observer in self.observers:
            observer.step_ended(step, step_shares(plan))

    def _note_drafts(
        self, plan: StepPlan, timer: StepTimer, taken: StepTokens
    ) -> StepOutcome | None:
        """Count what became of guesses, and tell whoever decides about them."""
        if self.draft_stats is None:
            return None
        control = self._scheduler.control
        outcome = taken.outcome(plan, timer.total_s, control.take_draft_s())
        self.draft_stats.add_step(outcome)
        control.observe(outcome)
        return outcome
