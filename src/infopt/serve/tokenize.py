"""``/tokenize``, ``/detokenize`` and ``/tokenizer_info``."""

from __future__ import annotations

from typing import Any

from infopt.errors import PromptError
from infopt.models.tokenizer import Tokenizer
from infopt.serve.protocol import DetokenizeRequest, TokenizeRequest
from infopt.serve.protocol.chat import messages_for_template
from infopt.serve.service import Service


async def tokenize(service: Service, body: TokenizeRequest) -> dict[str, Any]:
    """Return the ids of a text or a rendered conversation."""
    model = service.model_of(body.model)
    tokens = await service.run_aside(lambda: _encode(model.tokenizer, body))
    return {"count": len(tokens), "max_model_len": model.max_model_len, "tokens": tokens}


async def detokenize(service: Service, body: DetokenizeRequest) -> dict[str, Any]:
    """Return the text of ids, special tokens literally."""
    tokenizer = service.model_of(body.model).tokenizer
    raws = [tokenizer.token_bytes(token) for token in body.tokens]
    return {"prompt": b"".join(raws).decode("utf-8", errors="replace")}


def describe_tokenizer(service: Service, name: str | None) -> dict[str, Any]:
    """Return what a client needs to build the same prompts: special tokens, chat template."""
    model = service.model_of(name)
    hf = model.tokenizer.hf
    return {
        "tokenizer_class": type(hf).__name__,
        "vocab_size": model.tokenizer.vocab_size,
        "model_max_length": model.max_model_len,
        "bos_token": hf.bos_token,
        "eos_token": hf.eos_token,
        "pad_token": hf.pad_token,
        "unk_token": hf.unk_token,
        "chat_template": model.tokenizer.chat_template,
    }


def _encode(tokenizer: Tokenizer, body: TokenizeRequest) -> list[int]:
    if (body.prompt is None) == (body.messages is None):
        raise PromptError("give either prompt or messages.", field="prompt")
    if body.prompt is not None:
        return tokenizer.encode(body.prompt, body.add_special_tokens is not False)
    assert body.messages is not None
    return tokenizer.apply_chat_template(
        messages_for_template(body.messages),
        tools=body.tools,
        add_generation_prompt=body.add_generation_prompt is not False,
        **(body.chat_template_kwargs or {}),
    )
