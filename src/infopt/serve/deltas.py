"""What is new in an output since the last step.

The engine reports outputs that grow; a stream sends only what was added. The difference is taken on
the model thread, since the engine's objects change under every step.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from infopt.outputs import CompletionOutput, FinishReason, PositionLogprobs, RequestOutput


@dataclass(frozen=True, slots=True)
class EnergyUse:
    """Energy of a request.

    Attributes:
        prefill_joules: For its prompt; None where it could not be had.
        decode_joules: For its output.
        reason: Why there is none, or what was estimated.
    """

    prefill_joules: float | None
    decode_joules: float | None
    reason: str | None = None


@dataclass(slots=True)
class Delta:
    """What one step added to one completion.

    Attributes:
        prompt_index: Which prompt of the request it belongs to.
        index: Which completion of that prompt.
        text: Text that may be shown now (may be empty: part of a character, or held back).
        token_ids: New tokens.
        logprobs: One entry per new token, if asked for.
        finish_reason: Set on the last delta of a completion.
        stop_reason: The stop string or id that ended it.
        prompt_logprobs: Entries of the prompt, on the first delta of a completion.
        num_cached_tokens: Prompt tokens found in the prefix cache.
        energy: What all completions of the prompt used, on the last delta of the last one.
    """

    prompt_index: int
    index: int
    text: str = ""
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[PositionLogprobs] | None = None
    finish_reason: FinishReason | None = None
    stop_reason: str | int | None = None
    prompt_logprobs: list[PositionLogprobs | None] | None = None
    num_cached_tokens: int = 0
    energy: EnergyUse | None = None


@dataclass(slots=True)
class _Seen:
    num_tokens: int = 0
    num_characters: int = 0
    is_started: bool = False
    is_finished: bool = False


class OutputTracker:
    """Remembers how much of one request's output has been sent.

    Args:
        prompt_index: Which prompt of the HTTP request this is.
        num_completions: ``n``.
    """

    def __init__(self, prompt_index: int, num_completions: int) -> None:
        """Start with nothing sent."""
        self._prompt_index = prompt_index
        self._seen = [_Seen() for _ in range(num_completions)]

    def update(self, output: RequestOutput) -> list[Delta]:
        """Return what is new, one delta per completion that changed."""
        deltas = []
        for completion, seen in zip(output.outputs, self._seen, strict=True):
            is_new = len(completion.token_ids) > seen.num_tokens
            ends = completion.finish_reason is not None and not seen.is_finished
            if (is_new or ends) and _prompt_is_scored(output):
                deltas.append(self._take(output, completion, seen))
        return deltas

    def _take(self, output: RequestOutput, completion: CompletionOutput, seen: _Seen) -> Delta:
        logprobs = completion.logprobs
        delta = Delta(
            prompt_index=self._prompt_index,
            index=completion.index,
            text=completion.text[seen.num_characters :],
            token_ids=completion.token_ids[seen.num_tokens :],
            logprobs=None if logprobs is None else logprobs[seen.num_tokens :],
            finish_reason=completion.finish_reason,
            stop_reason=completion.stop_reason,
            prompt_logprobs=None if seen.is_started else output.prompt_logprobs,
            num_cached_tokens=output.num_cached_tokens,
        )
        seen.num_tokens = len(completion.token_ids)
        seen.num_characters = len(completion.text)
        seen.is_started = True
        seen.is_finished = completion.finish_reason is not None
        return delta


def _prompt_is_scored(output: RequestOutput) -> bool:
    """Whether the prompt's log-probabilities, which the first completion computes, are complete."""
    entries = output.prompt_logprobs
    return output.finished or entries is None or None not in entries[1:]
