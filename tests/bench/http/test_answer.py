"""What events say about an answer."""

from __future__ import annotations

import json
from typing import Any

import pytest

from infopt.bench.http.answer import Piece, StreamedAnswer
from infopt.bench.http.failures import RequestFailedError
from infopt.bench.http.sse import Event


def read(*chunks: dict[str, Any] | str) -> StreamedAnswer:
    answer = StreamedAnswer()
    for at_s, chunk in enumerate(chunks):
        answer.read(Event(chunk if isinstance(chunk, str) else json.dumps(chunk)), float(at_s))
    return answer


def delta(**values: Any) -> dict[str, Any]:
    return {"choices": [{"index": 0, "delta": values, "finish_reason": None}]}


def test_role_reasoning_tools_and_content_are_told_apart() -> None:
    call = {"index": 0, "function": {"name": "f", "arguments": "{}"}}
    answer = read(
        delta(role="assistant", content=""),
        delta(reasoning_content="hm"),
        delta(content="yes"),
        delta(tool_calls=[call]),
        {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]},
        "[DONE]",
    )
    assert answer.pieces == [Piece(1, "hm", False), Piece(2, "yes"), Piece(3, "f{}", False)]
    assert (answer.finish_reason, answer.last_choice_s, answer.finished_s) == ("stop", 4, 5)


def test_what_comes_after_the_end_changes_nothing() -> None:
    answer = read({"choices": [{"text": "a"}]}, "[DONE]", {"choices": [{"text": "b"}]}, "[DONE]")
    assert (answer.text, answer.finished_s) == ("a", 1)


@pytest.mark.parametrize(
    ("data", "name", "kind", "words"),
    [
        ('{"error": {"message": "out of\\nmemory"}}', "message", "error event", "out of memory"),
        ('{"object": "error", "message": "too long"}', "message", "error event", "too long"),
        ('{"detail": "x"}', "error", "error event", "detail"),
        ("overloaded", "error", "error event", "overloaded"),
        ('{"choices": [', "message", "malformed stream", "choices"),
        ("[1, 2]", "message", "malformed stream", "[1, 2]"),
        ('{"choices": [3]}', "message", "malformed stream", "[3]"),
        ('{"id": "x"}', "message", "malformed stream", '"id"'),
    ],
)
def test_errors_and_nonsense_are_failures(data: str, name: str, kind: str, words: str) -> None:
    """An error in a chunk without choices was taken for the end of a good answer."""
    with pytest.raises(RequestFailedError) as caught:
        StreamedAnswer().read(Event(data, name), 0.0)
    assert caught.value.kind == kind
    assert words in caught.value.message


@pytest.mark.parametrize("odd", [None, 3, [], {"function": 3}, [3], [{"function": None}]])
def test_odd_parts_of_a_delta_hold_no_text(odd: Any) -> None:
    answer = read(
        delta(content=odd, tool_calls=odd, reasoning=odd),
        {"choices": [{"delta": odd, "text": odd}]},
    )
    assert answer.pieces == []
