"""Request bodies, field by field. An unknown field is an error that names the nearest valid one."""

from infopt.serve.protocol.chat import ChatMessage, ChatRequest
from infopt.serve.protocol.completions import CompletionRequest
from infopt.serve.protocol.tokenize import DetokenizeRequest, TokenizeRequest

__all__ = [
    "ChatMessage",
    "ChatRequest",
    "CompletionRequest",
    "DetokenizeRequest",
    "TokenizeRequest",
]
