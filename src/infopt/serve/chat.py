"""``/v1/chat/completions``."""

from __future__ import annotations

from typing import Any

from infopt.sampling_params import SamplingParams
from infopt.serve.deltas import Delta
from infopt.serve.generation import Generation
from infopt.serve.logprobs import chat_logprobs
from infopt.serve.protocol import ChatRequest
from infopt.serve.service import Service


class ChatCompletion(Generation):
    """A request to answer a conversation.

    Args:
        service: Models and loop.
        body: The request.
    """

    kind = "chat.completion"
    chunk_kind = "chat.completion.chunk"
    id_prefix = "chatcmpl"

    def __init__(self, service: Service, body: ChatRequest) -> None:
        """Start with no answer begun."""
        super().__init__(service, body)
        self.body = body
        self._begun: set[int] = set()

    def prepare(self) -> tuple[list[list[int]], SamplingParams]:
        """Render the conversation with the model's own template and encode it."""
        params = self.body.params()
        token_ids = self.model.tokenizer.apply_chat_template(
            self.body.template_messages(), **(self.body.chat_template_kwargs or {})
        )
        self.model.engine.checker.check(token_ids, params)
        return [token_ids], params

    def choice(self, delta: Delta) -> dict[str, Any]:
        """Return a whole answer."""
        return {
            "index": delta.index,
            "message": {"role": "assistant", "content": delta.text, "refusal": None},
            "logprobs": self._describe(delta),
            "finish_reason": delta.finish_reason,
            "stop_reason": delta.stop_reason,
        }

    def chunks(self, delta: Delta) -> list[dict[str, Any]]:
        """Return a piece of an answer; the first of each answer carries the role, once."""
        message: dict[str, Any] = {}
        if delta.index not in self._begun:
            self._begun.add(delta.index)
            message = {"role": "assistant", "content": ""}
        if delta.text:
            message["content"] = delta.text
        logprobs = self._describe(delta)
        if not (message or logprobs or delta.finish_reason):
            return []
        return [
            {
                "index": delta.index,
                "delta": message,
                "logprobs": logprobs,
                "finish_reason": delta.finish_reason,
            }
            | ({"stop_reason": delta.stop_reason} if delta.finish_reason else {})
        ]

    def _describe(self, delta: Delta) -> dict[str, Any] | None:
        if delta.logprobs is None or not delta.token_ids:
            return None
        return chat_logprobs(delta.token_ids, delta.logprobs, self.body.top_logprobs or 0)
