"""Body of ``/v1/completions``."""

from __future__ import annotations

from pydantic import Field

from infopt.errors import PromptError
from infopt.sampling_params import MAX_LOGPROBS, SamplingParams
from infopt.serve.protocol.base import SamplingFields
from infopt.serve.protocol.strict import optional

_DEFAULT_MAX_TOKENS = 16


class CompletionRequest(SamplingFields):
    """A request to go on with a text."""

    prompt: str | list[str] | list[int] | list[list[int]] = Field(
        description="Text, token ids, or a list of either.",
        json_schema_extra={"minLength": 1, "minItems": 1},
    )
    max_tokens: int | None = optional(
        "Default 16, or what fits; 0 only scores the prompt.", minimum=0
    )
    echo: bool | None = Field(None, description="Put the prompt in front of the answer.")
    logprobs: int | None = optional(
        "Alternatives to report per token.", minimum=0, maximum=MAX_LOGPROBS
    )
    best_of: int | None = Field(None, description="Only the value of n is accepted.")
    suffix: str | None = optional("Not supported: only an empty text is accepted.", maxLength=0)

    def prompts(self) -> list[str | list[int]]:
        """Return the prompts one by one.

        Raises:
            PromptError: If there is none.
        """
        prompt = self.prompt
        if isinstance(prompt, str):
            return [prompt]
        if not prompt:
            raise PromptError("prompt is an empty list.", field="prompt", value=[])
        if isinstance(prompt[0], int):
            return [prompt]  # type: ignore[list-item]
        return list(prompt)  # type: ignore[arg-type]

    def prompt_text(self) -> str:
        """Return the prompts, one after the other; ids mean nothing before a model is chosen."""
        prompts = self.prompts()
        if not all(isinstance(prompt, str) for prompt in prompts):
            raise PromptError(
                "token ids belong to the vocabulary of one model, and auto may choose any.",
                field="prompt",
                remedy="Give text, or name a model.",
            )
        return "\n".join(map(str, prompts))

    def params(self, room: int) -> SamplingParams:
        """Return the sampling parameters.

        Args:
            room: Tokens that fit after the prompt; the default of ``max_tokens`` is no more than
                this, so that nobody is blamed for a limit that was not asked for.

        Raises:
            SamplingParamsError: Names the field at fault.
        """
        default = max(min(_DEFAULT_MAX_TOKENS, room), 1)
        max_tokens = default if self.max_tokens is None else self.max_tokens
        return self.sampling(
            max_tokens=max_tokens,
            logprobs=self.logprobs,
            prompt_logprobs=self.logprobs if self.echo else None,
        )
