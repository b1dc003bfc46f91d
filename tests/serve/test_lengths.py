"""Lengths at the limit, by text and by conversation: what fits runs, what does not says why."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"
LIMIT = 512


@pytest.fixture(params=[COMPLETIONS, CHAT])
def request_of(request: Any, server: Any) -> Callable[[int], tuple[str, dict[str, Any]]]:
    """Return route and body of a request whose prompt has this many tokens."""

    def make(num_tokens: int) -> tuple[str, dict[str, Any]]:
        if request.param == COMPLETIONS:
            return COMPLETIONS, {"prompt": "0" * num_tokens}
        messages = [{"role": "user", "content": ""}]
        frame = server.post("/tokenize", messages=messages).json()["count"]
        messages[0]["content"] = "0" * (num_tokens - frame)
        assert server.post("/tokenize", messages=messages).json()["count"] == num_tokens
        return CHAT, {"messages": messages}

    return make


def test_one_token_less_than_the_limit_gets_one_token(server, request_of):
    """A default of `max_tokens` that does not fit was blamed on the client, who had sent none."""
    path, body = request_of(LIMIT - 1)
    answer = server.post(path, ignore_eos=True, **body).json()
    assert answer["choices"][0]["finish_reason"] == "length"
    assert answer["usage"] == answer["usage"] | {"prompt_tokens": 511, "completion_tokens": 1}


def test_a_short_prompt_beside_a_long_one_keeps_the_default(server):
    answer = server.complete([[5] * (LIMIT - 3), [6]], ignore_eos=True, logprobs=0)
    counts = [len(choice["logprobs"]["tokens"]) for choice in answer["choices"]]
    assert counts == [3, 16]


@pytest.mark.parametrize("streams", [False, True])
@pytest.mark.parametrize("num_tokens", [LIMIT, LIMIT + 1, 10 * LIMIT])
def test_too_long_a_prompt(server, request_of, num_tokens, streams):
    """400 or 500, depending on how far it got; and a negative `max_tokens` that nobody had sent."""
    path, body = request_of(num_tokens)
    for _ in range(2):  # the second time with whatever the first one left in the prefix cache
        answer = server.post(path, stream=streams, **body)
        error = answer.json()["error"]
        assert (answer.status_code, error["code"]) == (400, "context_length_exceeded")
        assert error["param"] == "prompt"
        assert f"{num_tokens} tokens" in error["message"]
        assert str(LIMIT) in error["message"]
        assert "-" not in error["message"]


def test_prompt_and_output_together(server, request_of):
    """The message blamed a limit that was the real one minus `max_tokens`."""
    path, body = request_of(400)
    error = server.post(path, max_tokens=200, **body).json()["error"]
    assert (error["param"], error["code"]) == ("max_tokens", "context_length_exceeded")
    assert all(number in error["message"] for number in ("512", "400", "200", "112"))


def test_long_odd_text_is_too_long_and_nothing_worse(server, request_of):
    path, body = request_of(100)
    marks = "e" + "\u0301" * 100_000
    body = body | ({"prompt": marks} if path == COMPLETIONS else {})
    if path == CHAT:
        body["messages"][0]["content"] = marks
    answer = server.post(path, **body)
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "context_length_exceeded")
    server.complete([5], max_tokens=1)
