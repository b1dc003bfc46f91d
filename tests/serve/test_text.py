"""Text as it comes out: stop strings, broken bytes, pieces of characters."""

from __future__ import annotations

from typing import Any

import pytest

PATH = "/v1/completions"
EOS = 1


def deltas(events: list[dict[str, Any]]) -> list[str]:
    return [c["text"] for e in events for c in e["choices"] if c["text"]]


@pytest.mark.parametrize(
    ("pieces", "stop", "text"),
    [
        (["go ", "u", "vw", "x", "yz"], "uvwxyz", "go "),
        (["go ", "\n", "Ob", "s:"], "\nObs:", "go "),
    ],
)
def test_no_piece_of_a_stop_string_is_streamed(server, script, words, pieces, stop, text):
    """The beginning of a stop string over several tokens was sent before the rest had come."""
    script(words(*pieces))
    options = {"prompt": [5], "stop": stop, "max_tokens": 10}
    choice = server.complete(**options)["choices"][0]
    assert (choice["text"], choice["finish_reason"], choice["stop_reason"]) == (text, "stop", stop)
    assert deltas(server.stream(PATH, **options)) == [text]


def test_stop_string_inside_a_token(server, script, words):
    """Stop strings were looked for at the ends of tokens only."""
    script(words("b!c"))
    options = {"prompt": [5], "stop": ["!"], "max_tokens": 5}
    assert server.complete(**options)["choices"][0]["text"] == "b"
    shown = server.complete(**options, include_stop_str_in_output=True)["choices"][0]
    assert shown["text"] == "b!"


def test_nothing_is_held_back_without_need(server, script, words):
    """Holding back as much as the longest stop string delayed text where no match was possible."""
    script([*words("ab", "cd", "ef"), EOS])
    events = server.stream(PATH, prompt=[5], stop=["ZZZZZZZZZZ"], max_tokens=10)
    assert deltas(events) == ["ab", "cd", "ef"]


def test_bytes_that_are_no_text(server, script, words):
    """A lone continuation byte ended the stream, or the server."""
    script([*words(b"\x80"), EOS])
    for choice in (
        server.complete([5], max_tokens=5)["choices"][0],
        {"text": "".join(deltas(server.stream(PATH, prompt=[5], max_tokens=5)))},
    ):
        assert choice["text"] == "\ufffd"
        assert choice.get("finish_reason", "stop") == "stop"


def test_unfinished_character_at_the_end(server, script, words):
    script(words(b"\xf0"))
    choice = server.complete([5], max_tokens=1)["choices"][0]
    assert (choice["text"], choice["finish_reason"]) == ("\ufffd", "length")
    assert deltas(server.stream(PATH, prompt=[5], max_tokens=1)) == ["\ufffd"]
    server.complete([5], max_tokens=1)


def test_surrogates_in_the_output(server, script, words):
    """Bytes that spell half a surrogate pair reached the JSON writer."""
    script([*words(b"a\xed\xa0\x80b"), EOS])
    choice = server.complete([5], max_tokens=5)["choices"][0]
    assert choice["text"].replace("\ufffd", "") == "ab"
    assert choice["finish_reason"] == "stop"
