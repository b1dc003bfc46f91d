"""What one step computes: tokens of sequences, and the copies that go before them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from infopt.engine.sequence import Sequence

if TYPE_CHECKING:
    import torch


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
