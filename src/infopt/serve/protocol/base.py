"""What both completion endpoints share, and how it becomes `SamplingParams`."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any, ClassVar

from pydantic import Field

from infopt.sampling_params import SamplingParams
from infopt.serve.protocol.strict import StrictModel, optional
from infopt.serve.protocol.structured import ResponseFormat, StructuredOutputs
from infopt.structured import StructuredOutputError, StructuredSpec


class StreamOptions(StrictModel):
    """What a stream carries beside its text."""

    include_usage: bool | None = Field(None, description="End with an event that holds the usage.")


class SamplingFields(StrictModel):
    """Fields of both completion endpoints that say how to sample and when to stop."""

    model: str | None = Field(
        None,
        description="May be left out where one model is served; `auto` where a policy chooses.",
    )
    n: int | None = optional("Number of answers.", minimum=1, maximum=256)
    temperature: float | None = optional("0 is greedy; default 1.", minimum=0, maximum=100)
    top_p: float | None = optional(exclusiveMinimum=0, maximum=1)
    top_k: int | None = optional("0 or -1 keeps all.", minimum=-1)
    min_p: float | None = optional(minimum=0, maximum=1)
    presence_penalty: float | None = optional(minimum=-2, maximum=2)
    frequency_penalty: float | None = optional(minimum=-2, maximum=2)
    repetition_penalty: float | None = optional("1 is off.", exclusiveMinimum=0, maximum=100)
    logit_bias: dict[str, float] | None = optional(
        "Token id to bias, from -100 to 100.", propertyNames={"pattern": "^[0-9]+$"}
    )
    # No maximum: the description holds floats, and this limit is none.
    seed: int | None = optional("Up to 2^64 - 1.", minimum=-(2**63))
    stop: str | list[str] | None = optional(minLength=1, maxItems=64)
    stop_token_ids: list[int] | None = optional()
    include_stop_str_in_output: bool | None = None
    ignore_eos: bool | None = None
    min_tokens: int | None = optional(minimum=0)
    skip_special_tokens: bool | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    response_format: ResponseFormat | None = None
    structured_outputs: StructuredOutputs | None = None
    include_energy: bool | None = Field(
        None, description="Add the energy of the request to its usage."
    )
    kv_eviction: dict[str, Any] | None = Field(
        None, description='Keys and values to keep, e.g. {"method": "snapkv", "budget": 0.5}.'
    )

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
        "kv_eviction",
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

    @abstractmethod
    def prompt_text(self) -> str:
        """Return the text that a routing policy reads.

        Raises:
            PromptError: If there is none.
        """

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
