"""Body of ``/v1/completions``."""

from __future__ import annotations

from pydantic import Field

from infopt.errors import PromptError
from infopt.sampling_params import SamplingParams
from infopt.serve.protocol.base import SamplingFields

_DEFAULT_MAX_TOKENS = 16


class CompletionRequest(SamplingFields):
    """A request to go on with a text."""

    prompt: str | list[str] | list[int] | list[list[int]] = Field(
        description="Text, token ids, or a list of either."
    )
    max_tokens: int | None = Field(None, description="Default 16; 0 only scores the prompt.")
    echo: bool | None = Field(None, description="Put the prompt in front of the answer.")
    logprobs: int | None = Field(None, description="Alternatives to report per token, up to 64.")
    best_of: int | None = Field(None, description="Only the value of n is accepted.")
    suffix: str | None = Field(None, description="Not supported; only an empty text is accepted.")

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

    def params(self) -> SamplingParams:
        """Return the sampling parameters.

        Raises:
            SamplingParamsError: Names the field at fault.
        """
        return self.sampling(
            max_tokens=_DEFAULT_MAX_TOKENS if self.max_tokens is None else self.max_tokens,
            logprobs=self.logprobs,
            prompt_logprobs=self.logprobs if self.echo else None,
        )
