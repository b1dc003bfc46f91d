"""``--tool-parser`` and ``--reasoning-parser``, where the template does not show the form."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from typer.testing import CliRunner

from infopt.cli import app
from infopt.errors import ConfigError
from infopt.serve.config import ServeConfig

PATH = "/v1/chat/completions"
EOS = 1
TOOL = {"type": "function", "function": {"name": "f"}}
CALLS = '[TOOL_CALLS]f[ARGS]{"a": "é"}[TOOL_CALLS]f[ARGS]{}'
THOUGHT = "<thought>\nWhy?</thought>\n\n"


@pytest.fixture
def answer_of(
    start_server: Callable[..., Any], script: Callable[..., None]
) -> Callable[..., list[dict[str, Any]]]:
    """Let a server with these options say a text: the message whole, and joined from a stream."""

    def answer(text: str, **options: Any) -> list[dict[str, Any]]:
        server = start_server(**options)
        table = {server.tokenizer.token_bytes(i): i for i in range(server.tokenizer.vocab_size)}
        script([*(table[bytes([byte])] for byte in text.encode()), EOS])
        body: dict[str, Any] = {"tools": [TOOL], "max_tokens": 200}
        whole = server.chat("hi", **body)["choices"][0]
        body["messages"] = [{"role": "user", "content": "hi"}]
        events = server.stream(PATH, **body)
        joined: dict[str, Any] = {"content": "", "reasoning_content": "", "tool_calls": {}}
        for delta in (event["choices"][0]["delta"] for event in events):
            for key in ("content", "reasoning_content"):
                joined[key] += delta.get(key, "")
            for piece in delta.get("tool_calls", ()):
                name, text = joined["tool_calls"].get(piece["index"], ("", ""))
                function = piece["function"]
                joined["tool_calls"][piece["index"]] = (
                    name + function.get("name", ""),
                    text + function["arguments"],
                )
        message = whole["message"]
        calls = [tuple(call["function"].values()) for call in message.get("tool_calls", ())]
        first = {key: message.get(key) or "" for key in ("content", "reasoning_content")}
        assert events[-1]["choices"][0]["finish_reason"] == whole["finish_reason"]
        return [
            first | {"tool_calls": calls, "reason": whole["finish_reason"]},
            joined
            | {"tool_calls": list(joined["tool_calls"].values()), "reason": whole["finish_reason"]},
        ]

    return answer


def test_names_given_win_over_the_template(answer_of):
    """The tiny model's template shows neither calls nor thoughts."""
    options = {"tool_parser": "mistral", "reasoning_parser": "thought"}
    for message in answer_of(THOUGHT + CALLS, **options):
        assert message == {
            "content": "",
            "reasoning_content": "Why?",
            "tool_calls": [("f", '{"a": "é"}'), ("f", "{}")],
            "reason": "tool_calls",
        }


def test_none_leaves_everything_in_the_text(answer_of):
    text = '{"name": "f", "arguments": {}}'  # read as a call by default
    for message in answer_of(text, tool_parser="none", reasoning_parser="none"):
        assert (message["content"], message["tool_calls"]) == (text, [])
        assert message["reason"] == "stop"
    for message in answer_of(text):
        assert message["tool_calls"] == [("f", "{}")]


@pytest.mark.parametrize(
    ("option", "value", "names"),
    [
        ("tool_parser", "mistrall", ("deepseek", "generic", "hermes", "llama", "mistral", "none")),
        ("reasoning_parser", "thinking", ("think", "thought", "seed", "mistral", "none")),
    ],
)
def test_unknown_names_are_refused_with_the_list(option, value, names):
    with pytest.raises(ConfigError) as caught:
        ServeConfig(**{option: value})
    assert caught.value.field == option
    assert all(name in str(caught.value) for name in names)
    assert "Did you mean" in str(caught.value)
    flag = f"--{option.replace('_', '-')}"
    result = CliRunner().invoke(app, ["serve", "absent-slug", flag, value])
    assert result.exit_code == 2
    assert value in result.output
