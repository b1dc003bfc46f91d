"""Body of ``/v1/chat/completions``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

from pydantic import Field, model_validator
from pydantic_core import PydanticCustomError

from infopt.errors import PromptError, SamplingParamsError
from infopt.sampling_params import SamplingParams
from infopt.serve.protocol.base import SamplingFields
from infopt.serve.protocol.strict import StrictModel, optional
from infopt.serve.protocol.tools import NamedChoice, Tool, ToolCall

MAX_TOP_LOGPROBS = 20


class TextPart(StrictModel):
    """A piece of a message."""

    type: Literal["text"] = Field(description="Other kinds (images, audio) are not supported.")
    text: str


class ChatMessage(StrictModel):
    """One message of a conversation."""

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | list[TextPart] | None = Field(
        None, description="Text parts are joined by newlines."
    )
    name: str | None = None
    refusal: str | None = Field(None, description="Accepted, without effect.")
    tool_calls: list[ToolCall] | None = None
    tool_call_id: str | None = None
    reasoning_content: str | None = Field(None, description="Handed to the chat template.")

    @model_validator(mode="before")
    @classmethod
    def _refuse_other_parts(cls, data: Any) -> Any:
        content = data.get("content") if isinstance(data, dict) else None
        for part in content if isinstance(content, list) else ():
            kind = part.get("type") if isinstance(part, dict) else None
            if isinstance(kind, str) and kind != "text":
                text = f"parts of type {kind!r} are not supported, only text."
                raise PydanticCustomError(
                    "unsupported_part", "{text}", {"text": text, "field": "content"}
                )
        return data

    def text(self) -> str:
        """Return the content as one text."""
        if isinstance(self.content, list):
            return "\n".join(part.text for part in self.content)
        return self.content or ""

    def for_template(self, place: str) -> dict[str, Any]:
        """Return what the chat template sees.

        Args:
            place: Where it is in the request, for messages.

        Raises:
            PromptError: If a content or the arguments of a call cannot be used.
        """
        if self.content is None and self.role != "assistant":
            raise PromptError(
                f"{place}.content is null, which only an assistant's may be.",
                field=f"{place}.content",
            )
        # Templates know "system"; "developer" is a later name for the same thing.
        role = "system" if self.role == "developer" else self.role
        message: dict[str, Any] = {"role": role, "content": self.text()}
        for name in ("name", "tool_call_id", "reasoning_content"):
            if getattr(self, name) is not None:
                message[name] = getattr(self, name)
        if self.tool_calls:
            message["tool_calls"] = [
                call.for_template(f"{place}.tool_calls[{index}]")
                for index, call in enumerate(self.tool_calls)
            ]
        return message


def messages_for_template(messages: Sequence[ChatMessage]) -> list[dict[str, Any]]:
    """Return messages as the chat template sees them.

    Raises:
        PromptError: Names the message and field that cannot be used.
    """
    return [m.for_template(f"messages[{index}]") for index, m in enumerate(messages)]


class ChatRequest(SamplingFields):
    """A conversation to be answered."""

    messages: list[ChatMessage] = Field(json_schema_extra={"minItems": 1})
    max_tokens: int | None = optional("Default: as many as fit.", minimum=0)
    max_completion_tokens: int | None = optional("The same as max_tokens.", minimum=0)
    logprobs: bool | None = None
    top_logprobs: int | None = optional(minimum=0, maximum=MAX_TOP_LOGPROBS)
    chat_template_kwargs: dict[str, Any] | None = Field(
        None, description="Further variables for the chat template."
    )
    tools: list[Tool] | None = None
    tool_choice: Literal["none", "auto", "required"] | NamedChoice | None = None
    parallel_tool_calls: bool | None = Field(None, description="False: one call at most.")
    include_reasoning: bool | None = Field(
        None, description="False: reasoning is not split from the content."
    )

    @property
    def choice_of_tool(self) -> Literal["none", "auto", "required"] | NamedChoice:
        """How tools are to be used.

        Raises:
            PromptError: If a tool is to be called that is not there.
        """
        names = [tool.function.name for tool in self.tools or ()]
        choice = self.tool_choice or ("auto" if names else "none")
        name = choice.function.name if isinstance(choice, NamedChoice) else None
        if (name is not None and name not in names) or (choice == "required" and not names):
            raise PromptError(
                f"tool_choice asks for {name or 'a tool'!r}, the tools are: "
                f"{', '.join(names) or 'none'}.",
                field="tool_choice",
                value=name,
            )
        return choice if names else "none"

    def template_messages(self) -> list[dict[str, Any]]:
        """Return the conversation as the chat template sees it.

        Raises:
            PromptError: If there is none, or a message that must have a content has none.
        """
        if not self.messages:
            raise PromptError("messages is an empty list.", field="messages", value=[])
        return messages_for_template(self.messages)

    def prompt_text(self) -> str:
        """Return the texts of all messages, one after the other."""
        return "\n".join(message.text() for message in self.messages)

    def params(self) -> SamplingParams:
        """Return the sampling parameters.

        Raises:
            SamplingParamsError: Names the field at fault.
        """
        return self.sampling(max_tokens=self._max_tokens(), logprobs=self._num_logprobs())

    def _max_tokens(self) -> int | None:
        given = {self.max_tokens, self.max_completion_tokens} - {None}
        if len(given) > 1:
            raise SamplingParamsError(
                f"max_tokens={self.max_tokens} and max_completion_tokens="
                f"{self.max_completion_tokens} contradict each other.",
                field="max_completion_tokens",
                value=self.max_completion_tokens,
                remedy="They mean the same: give one.",
            )
        limit = given.pop() if given else None
        if limit is not None and limit < 0:
            name = "max_completion_tokens" if self.max_tokens is None else "max_tokens"
            raise SamplingParamsError(
                f"{name} must be a whole number >= 0, got {limit}.", field=name, value=limit
            )
        return limit

    def _num_logprobs(self) -> int | None:
        top = self.top_logprobs
        if top is not None and not 0 <= top <= MAX_TOP_LOGPROBS:
            raise SamplingParamsError(
                f"top_logprobs must be from 0 to {MAX_TOP_LOGPROBS}, got {top}.",
                field="top_logprobs",
                value=top,
            )
        if top and not self.logprobs:
            raise SamplingParamsError(
                f"top_logprobs={top} needs logprobs=true.", field="top_logprobs", value=top
            )
        return (top or 0) if self.logprobs else None
