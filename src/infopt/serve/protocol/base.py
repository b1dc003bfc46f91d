"""What both completion endpoints share, and how it becomes `SamplingParams`."""

from __future__ import annotations

from typing import Any, ClassVar

from pydantic import Field

from infopt.sampling_params import SamplingParams
from infopt.serve.protocol.strict import StrictModel
from infopt.serve.protocol.structured import ResponseFormat, StructuredOutputs
from infopt.structured import StructuredOutputError, StructuredSpec


class StreamOptions(StrictModel):
    """What a stream carries beside its text."""

    include_usage: bool | None = Field(None, description="End with an event that holds the usage.")


class SamplingFields(StrictModel):
    """Fields of both completion endpoints that say how to sample and when to stop."""

    model: str | None = Field(None, description="May be left out where one model is served.")
    n: int | None = Field(None, description="Number of answers.")
    temperature: float | None = Field(None, description="0 is greedy; default 1.")
    top_p: float | None = None
    top_k: int | None = Field(None, description="0 or -1 keeps all.")
    min_p: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    repetition_penalty: float | None = None
    logit_bias: dict[str, float] | None = Field(None, description="Token id to bias.")
    seed: int | None = None
    stop: str | list[str] | None = None
    stop_token_ids: list[int] | None = None
    include_stop_str_in_output: bool | None = None
    ignore_eos: bool | None = None
    min_tokens: int | None = None
    skip_special_tokens: bool | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    response_format: ResponseFormat | None = None
    structured_outputs: StructuredOutputs | None = None

    user: str | None = Field(None, description="Accepted, without effect.")
    metadata: dict[str, Any] | None = Field(None, description="Accepted, without effect.")
    store: bool | None = Field(None, description="Accepted, without effect.")
    service_tier: str | None = Field(None, description="Accepted, without effect.")
    safety_identifier: str | None = Field(None, description="Accepted, without effect.")
    prompt_cache_key: str | None = Field(None, description="Accepted, without effect.")

    SAMPLING: ClassVar[tuple[str, ...]] = (
        "n",
        "temperature",
        "top_p",
        "top_k",
        "min_p",
        "presence_penalty",
        "frequency_penalty",
        "repetition_penalty",
        "logit_bias",
        "seed",
        "stop",
        "stop_token_ids",
        "include_stop_str_in_output",
        "ignore_eos",
        "min_tokens",
        "skip_special_tokens",
    )
    """Fields that go to `SamplingParams` under the same name."""

    def structured(self) -> StructuredSpec | None:
        """Return what the output must look like, if the request says so.

        Raises:
            StructuredOutputError: If it says so twice, or not completely.
        """
        specs = [
            spec
            for part in (self.response_format, self.structured_outputs)
            if part is not None and (spec := part.spec()) is not None
        ]
        if len(specs) > 1:
            raise StructuredOutputError(
                "response_format and structured_outputs cannot be combined.",
                field="structured_outputs",
            )
        return specs[0] if specs else None

    @property
    def wants_usage(self) -> bool:
        """Whether the stream ends with the usage."""
        return bool(self.stream_options and self.stream_options.include_usage)

    def sampling(self, **own: Any) -> SamplingParams:
        """Return the sampling parameters; what the request leaves out has its default.

        Args:
            own: Values the endpoint works out by itself.

        Raises:
            SamplingParamsError: Names the field at fault.
        """
        given = {name: getattr(self, name) for name in self.SAMPLING}
        return SamplingParams(**{k: v for k, v in given.items() if v is not None}, **own)
