"""Shapes of the answers, for ``/openapi.json`` alone: answers are written as plain data.

A test sends requests of every kind and holds what comes back against these models, which allow no
field that is not named here.
"""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

FinishReason = Literal["stop", "length", "tool_calls", "abort"]


class Answer(BaseModel):
    """Base of all shapes: nothing but the named fields."""

    model_config = ConfigDict(extra="forbid")


class ErrorDetail(Answer):
    """What went wrong."""

    message: str = Field(description="What is wrong, and what to do about it.")
    type: str = Field(description="invalid_request_error, rate_limit_error, server_error, ...")
    param: str | None = Field(description="The field at fault.")
    code: str | None = Field(description="Short name of the fault, for programs.")


class ErrorBody(Answer):
    """The body of every error, and the last event of a stream that failed."""

    error: ErrorDetail


class PromptTokensDetails(Answer):
    """Which prompt tokens were not computed again."""

    cached_tokens: int = Field(description="Found in the prefix cache.")


class RequestEnergy(Answer):
    """Energy of a request: its tokens' share of the steps they were computed in."""

    joules: float | None
    prefill_joules: float | None
    decode_joules: float | None
    source: Literal["nvml", "rapl", "nvml+rapl", "power-integral", "modelled"] | None
    derived: bool = Field(description="Computed from constants instead of measured.")
    reason: str | None = Field(description="Why there is none, or what was estimated.")


class Tokens(Answer):
    """Tokens of an answer."""

    prompt_tokens: int = Field(description="Of all prompts, each once whatever n is.")
    completion_tokens: int = Field(description="Of all answers, stop tokens included.")
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails
    energy: RequestEnergy | None = Field(None, description="Where `include_energy` was set.")


class AskedFirst(Tokens):
    """An answer that a cascade has thrown away."""

    model: str


class RequestRoute(Answer):
    """How a request for the model `auto` came to its model."""

    model: str = Field(description="Who answered.")
    reason: str
    asked_first: AskedFirst | None = Field(None, description="Not part of the other counts.")


class Usage(Tokens):
    """Tokens of a request."""

    route: RequestRoute | None = Field(None, description="Where the model was `auto`.")


class CompletionLogprobs(Answer):
    """Parallel lists, one entry per token; the first token of an echoed prompt has none."""

    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float] | None]
    text_offset: list[int] = Field(description="Where each token begins in the text.")


class CompletionChoice(Answer):
    """One continuation."""

    index: int
    text: str
    logprobs: CompletionLogprobs | None
    finish_reason: FinishReason | None
    stop_reason: str | int | None = Field(description="The stop string or id that ended it.")


class CompletionAnswer(Answer):
    """What ``/v1/completions`` answers."""

    id: str
    object: Literal["text_completion"]
    created: int
    model: str
    choices: list[CompletionChoice]
    usage: Usage


class CompletionChunk(Answer):
    """An event of a stream of ``/v1/completions``."""

    id: str
    object: Literal["text_completion"]
    created: int
    model: str
    choices: list[CompletionChoice]
    usage: Usage | None = Field(None, description="In the last event, where it was asked for.")


class TopLogprob(Answer):
    """A token with its log-probability."""

    token: str
    logprob: float
    bytes: list[int] = Field(description="Exact bytes, which may be part of a character.")


class TokenLogprob(TopLogprob):
    """A token of the answer."""

    top_logprobs: list[TopLogprob]


class ChatLogprobs(Answer):
    """Log-probabilities of an answer, token by token."""

    content: list[TokenLogprob]
    refusal: None


class CalledFunction(Answer):
    """A call that the model asks for."""

    name: str
    arguments: str = Field(description="JSON text.")


class ToolCall(Answer):
    """A call with the id that its result must name."""

    id: str
    type: Literal["function"]
    function: CalledFunction


class AssistantMessage(Answer):
    """The message that the model wrote."""

    role: Literal["assistant"]
    content: str | None = Field(description="Null where the answer is nothing but calls.")
    refusal: None
    reasoning_content: str | None = None
    tool_calls: list[ToolCall] | None = None


class ChatChoice(Answer):
    """One answer."""

    index: int
    message: AssistantMessage
    logprobs: ChatLogprobs | None
    finish_reason: FinishReason | None
    stop_reason: str | int | None = Field(description="The stop string or id that ended it.")


class ChatAnswer(Answer):
    """What ``/v1/chat/completions`` answers."""

    id: str
    object: Literal["chat.completion"]
    created: int
    model: str
    choices: list[ChatChoice]
    usage: Usage


class CalledFunctionDelta(Answer):
    """A piece of a call: the name comes first, then the arguments bit by bit."""

    name: str | None = None
    arguments: str


class ToolCallDelta(Answer):
    """A piece of a call; id and type come with the first one."""

    index: int
    id: str | None = None
    type: Literal["function"] | None = None
    function: CalledFunctionDelta


class MessageDelta(Answer):
    """What an event adds to a message; the role comes first, once."""

    role: Literal["assistant"] | None = None
    content: str | None = None
    reasoning_content: str | None = None
    tool_calls: list[ToolCallDelta] | None = None


class ChatChunkChoice(Answer):
    """What an event adds to one answer."""

    index: int
    delta: MessageDelta
    logprobs: ChatLogprobs | None
    finish_reason: FinishReason | None
    stop_reason: str | int | None = None


class ChatChunk(Answer):
    """An event of a stream of ``/v1/chat/completions``."""

    id: str
    object: Literal["chat.completion.chunk"]
    created: int
    model: str
    choices: list[ChatChunkChoice]
    usage: Usage | None = Field(None, description="In the last event, where it was asked for.")


class ModelCard(Answer):
    """A model."""

    id: str
    object: Literal["model"]
    created: int
    owned_by: str
    max_model_len: int = Field(description="Most tokens of prompt and answer together.")


class ModelList(Answer):
    """All models."""

    object: Literal["list"]
    data: list[ModelCard]


class TokenizeAnswer(Answer):
    """Ids of a text."""

    count: int
    max_model_len: int
    tokens: list[int]


class DetokenizeAnswer(Answer):
    """Text of ids."""

    prompt: str


class TokenizerInfo(Answer):
    """What a client needs to build the same prompts as the server."""

    tokenizer_class: str
    vocab_size: int
    model_max_length: int
    bos_token: str | None
    eos_token: str | None
    pad_token: str | None
    unk_token: str | None
    chat_template: str | None


class Health(Answer):
    """State of the server."""

    status: Literal["starting", "ready", "draining", "failed"]
    models: list[str]
