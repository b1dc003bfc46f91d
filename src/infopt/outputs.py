"""What a request returns, with vLLM's names."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

FinishReason = Literal["stop", "length", "abort", "error"]


@dataclass(frozen=True, slots=True)
class Logprob:
    """One candidate token at one position.

    Attributes:
        logprob: Natural log-probability under the raw logits (before penalties and filters).
        rank: 1 is the most likely; ties are ranked by id.
        decoded_token: Its text (replacement marks where it is part of a character), if detokenized.
        token_bytes: Its exact bytes, if detokenized.
    """

    logprob: float
    rank: int
    decoded_token: str | None = None
    token_bytes: bytes | None = None


PositionLogprobs = dict[int, Logprob]
"""Candidates of one position by token id; always holds the token that was taken."""


@dataclass(slots=True)
class RequestMetrics:
    """When things happened, in seconds of the engine's clock (None: has not happened).

    Attributes:
        arrival_s: When the request was added (or scheduled to arrive, if the caller said so).
        first_scheduled_s: When it first entered a step.
        first_token_s: When its first output token was known.
        finished_s: When it ended.
        token_times_s: Time of each output token; tokens of one step share a time.
        num_preemptions: How often it lost its pages.
        kv_freed_bytes: Bytes of the pages that evicting rows gave back to the pool.
    """

    arrival_s: float
    first_scheduled_s: float | None = None
    first_token_s: float | None = None
    finished_s: float | None = None
    token_times_s: list[float] = field(default_factory=list)
    num_preemptions: int = 0
    kv_freed_bytes: int = 0

    @property
    def ttft_s(self) -> float | None:
        """Time to first token, from arrival."""
        return None if self.first_token_s is None else self.first_token_s - self.arrival_s

    @property
    def queue_s(self) -> float | None:
        """Time spent waiting before the first step."""
        if self.first_scheduled_s is None:
            return None
        return self.first_scheduled_s - self.arrival_s

    @property
    def e2e_s(self) -> float | None:
        """Time from arrival to the end."""
        return None if self.finished_s is None else self.finished_s - self.arrival_s

    @property
    def tpot_s(self) -> float | None:
        """Mean time per output token after the first; None for answers of one token."""
        if self.first_token_s is None or len(self.token_times_s) < 2:
            return None
        return (self.token_times_s[-1] - self.first_token_s) / (len(self.token_times_s) - 1)


@dataclass(slots=True)
class CompletionOutput:
    """One completion of a prompt.

    Attributes:
        index: 0 .. n-1.
        text: The text so far (empty when not detokenized).
        token_ids: The tokens so far, stop token included.
        logprobs: One entry per token, if asked for.
        finish_reason: None while running; stop, length, abort or error.
        stop_reason: The stop string or stop token id that ended it (None: end-of-sequence).
        metrics: Timing of this completion.
    """

    index: int
    text: str = ""
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[PositionLogprobs] | None = None
    finish_reason: FinishReason | None = None
    stop_reason: str | int | None = None
    metrics: RequestMetrics | None = None

    @property
    def cumulative_logprob(self) -> float | None:
        """Sum of the log-probabilities of the tokens taken, if they were asked for."""
        if self.logprobs is None:
            return None
        return sum(p[t].logprob for t, p in zip(self.token_ids, self.logprobs, strict=True))


@dataclass(slots=True)
class RequestOutput:
    """A prompt with its completions.

    Attributes:
        request_id: The caller's or the engine's name for it.
        prompt: The text, when text was given.
        prompt_token_ids: What the model read.
        outputs: The completions, by index.
        prompt_logprobs: One entry per prompt token (the first is None), if asked for.
        num_cached_tokens: Prompt tokens whose KV came from the prefix cache (first completion).
        finished: Whether all completions have ended.
    """

    request_id: str
    prompt: str | None
    prompt_token_ids: list[int]
    outputs: list[CompletionOutput]
    prompt_logprobs: list[PositionLogprobs | None] | None = None
    num_cached_tokens: int = 0
    finished: bool = False

    @property
    def metrics(self) -> RequestMetrics:
        """Timing of the first completion."""
        metrics = self.outputs[0].metrics
        assert metrics is not None
        return metrics


@dataclass(frozen=True, slots=True)
class ScoreOutput:
    """Log-probabilities of a given text.

    Attributes:
        token_ids: The tokens that were scored.
        logprobs: One per token; the first is None, since nothing precedes it.
        greedy_matches: Whether each token was the most likely one (the first is None).
    """

    token_ids: list[int]
    logprobs: list[float | None]
    greedy_matches: list[bool | None]
