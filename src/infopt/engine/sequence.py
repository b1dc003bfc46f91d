"""One completion in progress: tokens, progress, and what belongs to its sampling."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

from infopt.cache.eviction import EvictionState
from infopt.cache.manager import SequenceCache
from infopt.engine.constraint import TokenConstraint
from infopt.engine.detokenizer import Detokenizer
from infopt.outputs import FinishReason, PositionLogprobs, RequestMetrics
from infopt.sampling_params import SamplingParams


class SequenceStatus(Enum):
    """Where a sequence is in its life."""

    WAITING = "waiting"
    RUNNING = "running"
    FINISHED = "finished"


@dataclass(slots=True, eq=False)
class Sequence:
    """One completion of one request.

    Attributes:
        seq_id: Unique in the engine; also the order of arrival.
        request_id: The request it belongs to.
        index: Which of the request's ``n`` completions it is.
        token_ids: Prompt and output.
        num_prompt_tokens: Leading tokens that came from the user.
        params: Sampling parameters.
        seed: Seed of this completion's samples.
        max_tokens: Output limit after clamping to what fits.
        cache: Block tables; ``cache.num_tokens`` tokens have keys and values.
        num_cached_tokens: Prompt tokens found in the prefix cache at the first admission.
        host_pages: Per group, host pages of a swapped-out sequence.
        host_quantized: The same for its quantized pages.
        waits_for: Sequence whose prompt must be computed first (completions of one prompt share
            its pages through the prefix cache).
        output_counts: Occurrences of each output token, for the penalties.
        logprobs: One entry per output token, if asked for.
        prompt_logprobs: One entry per prompt token, if asked for.
        constraint: Decides which tokens may come next (a grammar, say).
        eviction: Which rows of keys and values are let go, and when; None keeps all.
        detokenizer: Makes text of its tokens and knows its stop strings; None works on ids alone.
    """

    seq_id: int
    request_id: str
    index: int
    token_ids: list[int]
    num_prompt_tokens: int
    params: SamplingParams
    seed: int
    max_tokens: int
    cache: SequenceCache
    metrics: RequestMetrics
    status: SequenceStatus = SequenceStatus.WAITING
    num_cached_tokens: int = 0
    was_admitted: bool = False
    was_preempted: bool = False
    host_pages: list[list[int]] | None = None
    host_quantized: list[list[int]] | None = None
    waits_for: Sequence | None = None
    output_counts: dict[int, int] = field(default_factory=dict)
    logprobs: list[PositionLogprobs] | None = None
    prompt_logprobs: list[PositionLogprobs | None] | None = None
    constraint: TokenConstraint | None = None
    eviction: EvictionState | None = None
    detokenizer: Detokenizer | None = None
    finish_reason: FinishReason | None = None
    stop_reason: str | int | None = None

    @property
    def num_output_tokens(self) -> int:
        """Tokens made so far."""
        return len(self.token_ids) - self.num_prompt_tokens

    @property
    def output_token_ids(self) -> list[int]:
        """The tokens made so far."""
        return self.token_ids[self.num_prompt_tokens :]

    @property
    def first_scored(self) -> int:
        """First prompt position whose log-probability is asked for; the length if none is."""
        if self.prompt_logprobs is None:
            return self.num_prompt_tokens
        return max(self.params.prompt_logprobs_start, 1)  # nothing predicts the first token

    @property
    def first_unscored(self) -> int | None:
        """First prompt position whose log-probability is asked for and not known yet."""
        positions = range(self.first_scored, self.num_prompt_tokens)
        entries = self.prompt_logprobs or []
        return next((at for at in positions if entries[at] is None), None)

    @property
    def num_pending(self) -> int:
        """Tokens whose keys and values are still to be computed."""
        return len(self.token_ids) - self.cache.num_tokens

    @property
    def is_decoding(self) -> bool:
        """Whether only the newest token is missing."""
        return self.num_pending == 1 and self.num_output_tokens > 0

    @property
    def num_remaining_tokens(self) -> int:
        """Output tokens it may still make."""
        return self.max_tokens - self.num_output_tokens

    @property
    def is_finished(self) -> bool:
        """Whether it has ended."""
        return self.status is SequenceStatus.FINISHED

    def append(self, token_id: int) -> None:
        """Add an output token."""
        self.token_ids.append(token_id)
        self.output_counts[token_id] = self.output_counts.get(token_id, 0) + 1
