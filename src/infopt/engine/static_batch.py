"""Static scheduling: batches that stay together until their last sequence has finished."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice

from infopt.config import EngineConfig
from infopt.engine.sequence import Sequence
from infopt.engine.step_plan import StepPlan


class StaticBatch:
    """The batch that is being computed.

    Args:
        config: ``max_num_seqs``, and whether ``scheduling`` is ``static_padded``.
    """

    def __init__(self, config: EngineConfig) -> None:
        """Start with nobody."""
        self._max_num_seqs = config.max_num_seqs
        self._is_padded = config.scheduling == "static_padded"
        self._members: list[Sequence] = []

    def __contains__(self, sequence: Sequence) -> bool:
        """Whether a sequence belongs to the batch."""
        return sequence in self._members

    def form(self, waiting: Iterable[Sequence]) -> None:
        """Take in who waits, if all members have finished."""
        if self._num_finished == len(self._members):
            self._members = list(islice(waiting, self._max_num_seqs))

    def num_padding_tokens(self, plan: StepPlan) -> int:
        """Count what a classic fixed batch computes in a step beside its useful tokens.

        Prompts are as long as the longest of the batch, and rows that have finished go on until the
        last one does.
        """
        if not self._is_padded or not plan.scheduled:
            return 0
        longest = max(s.num_prompt_tokens for s in self._members)
        padding = sum(
            longest - item.sequence.num_prompt_tokens
            for item in plan.scheduled
            if item.start + item.num_tokens == item.sequence.num_prompt_tokens
        )
        if any(item.is_decode for item in plan.scheduled):
            padding += self._num_finished
        return padding

    @property
    def _num_finished(self) -> int:
        return sum(s.is_finished for s in self._members)
