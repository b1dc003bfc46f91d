"""A request: one prompt, its completions in progress, and the output object the caller sees."""

from __future__ import annotations

from dataclasses import dataclass

from infopt.engine.sequence import Sequence
from infopt.outputs import CompletionOutput, RequestOutput


@dataclass(slots=True)
class Request:
    """Ties the sequences of a prompt to its output.

    Attributes:
        sequences: One per completion.
        output: Updated in place after each step.
    """

    sequences: list[Sequence]
    output: RequestOutput

    @classmethod
    def create(cls, prompt: str | None, sequences: list[Sequence]) -> Request:
        """Make the request and its empty output.

        Args:
            prompt: The text, where it was given as text.
            sequences: One per completion.
        """
        first = sequences[0]
        completions = [
            CompletionOutput(index=s.index, metrics=s.metrics, logprobs=s.logprobs)
            for s in sequences
        ]
        output = RequestOutput(
            request_id=first.request_id,
            prompt=prompt,
            prompt_token_ids=first.token_ids[: first.num_prompt_tokens],
            outputs=completions,
        )
        return cls(sequences, output)

    def update(self, sequence: Sequence) -> None:
        """Bring the output of one completion up to date."""
        completion = self.output.outputs[sequence.index]
        detokenizer = sequence.detokenizer
        if sequence.is_finished and detokenizer is not None:
            detokenizer.finish()
        completion.token_ids = sequence.output_token_ids
        completion.text = detokenizer.text if detokenizer is not None else ""
        completion.finish_reason = sequence.finish_reason
        completion.stop_reason = sequence.stop_reason
        if sequence.index == 0:
            self.output.num_cached_tokens = sequence.num_cached_tokens
            self.output.prompt_logprobs = sequence.prompt_logprobs
        self.output.finished = all(s.is_finished for s in self.sequences)
