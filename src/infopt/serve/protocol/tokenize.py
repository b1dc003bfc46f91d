"""Bodies of ``/tokenize`` and ``/detokenize``."""

from __future__ import annotations

from typing import Any

from pydantic import Field

from infopt.serve.protocol.chat import ChatMessage
from infopt.serve.protocol.strict import StrictModel


class TokenizeRequest(StrictModel):
    """A text, or a conversation to be rendered by the chat template."""

    model: str | None = None
    prompt: str | None = Field(None, description="Either this or messages.")
    messages: list[ChatMessage] | None = None
    tools: list[dict[str, Any]] | None = None
    add_special_tokens: bool | None = Field(
        None, description="Add BOS where the tokenizer does; default true (for a prompt only)."
    )
    add_generation_prompt: bool | None = Field(None, description="Default true.")
    chat_template_kwargs: dict[str, Any] | None = None


class DetokenizeRequest(StrictModel):
    """Token ids."""

    model: str | None = None
    tokens: list[int]
