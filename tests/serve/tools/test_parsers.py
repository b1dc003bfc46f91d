"""Reading calls: the same result however the text is cut, in every form."""

from __future__ import annotations

import itertools
import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from infopt.serve.chat_output import ChatOutput, OutputForm, join_message
from infopt.serve.tools.deepseek import DeepSeekParser
from infopt.serve.tools.parsers import PARSERS, parser_for
from infopt.serve.tools.tags import TAGS, tags_for

ARGUMENTS = [
    "{}",
    '{"n": -1.5e3, "deep": [[1, {"k": null}], []], "flag": true}',
    '{"text": "a } b { \\" \\\\ ] [", "emoji": "Zwölf 🫠 離線"}',
    '{ "spaced" :  1 ,\n "tag": "</tool_call>" }',
]
NAMES = ["f", "get_weather", "a.b-c"]
FORMS = [*PARSERS.names(), "mistral-args", "mistral-ids", "mistral-bare"]
"""Families, and further forms of the same family."""


def write(family: str, calls: list[tuple[str, str]]) -> str:
    """Return calls as a model of that family writes them."""
    objects = [f'{{"name": "{n}", "arguments": {a}}}' for n, a in calls]
    if family == "hermes":
        return "\n".join(f"<tool_call>\n{o}\n</tool_call>" for o in objects)
    if family == "llama":
        return "; ".join(o.replace('"arguments"', '"parameters"', 1) for o in objects)
    if family == "mistral":
        return f"[TOOL_CALLS] [{', '.join(objects)}]"
    if family == "mistral-args":
        return "".join(f"[TOOL_CALLS]{n}[ARGS]{a}" for n, a in calls)
    if family == "mistral-ids":
        return " ".join(f"[TOOL_CALLS] {n}[CALL_ID]a1b2[ARGS] {a}" for n, a in calls)
    if family == "mistral-bare":
        return "\n".join(f"[TOOL_CALLS]{n}{a}" for n, a in calls)
    if family == "generic":
        return f"[{', '.join(objects)}]"
    bar, low = "\uff5c", "\u2581"
    inner = "\n".join(
        f"<{bar}tool{low}call{low}begin{bar}>function<{bar}tool{low}sep{bar}>{n}\n```json\n{a}\n"
        f"```<{bar}tool{low}call{low}end{bar}>"
        for n, a in calls
    )
    return f"<{bar}tool{low}calls{low}begin{bar}>{inner}<{bar}tool{low}calls{low}end{bar}>"


def read(family: str, pieces: list[str], **form: Any) -> tuple[dict[str, Any], list[Any]]:
    """Return the message and the deltas it was joined from."""
    parser = PARSERS.get(family.partition("-")[0])
    output = ChatOutput(OutputForm(make_parser=parser, **form))
    deltas: list[Any] = []
    for index, piece in enumerate(pieces):
        deltas += output.read(piece, is_last=index == len(pieces) - 1)
    return join_message(deltas), deltas


def calls_of(message: dict[str, Any]) -> list[tuple[str, str]]:
    return [
        (c["function"]["name"], c["function"]["arguments"]) for c in message.get("tool_calls", [])
    ]


@pytest.mark.parametrize("family", FORMS)
@pytest.mark.parametrize("arguments", ARGUMENTS)
def test_cut_at_every_place(family, arguments):
    """Pieces of the arguments were missing, twice there, or null when text was parsed anew."""
    text = write(family, [("f", arguments)])
    json.loads(arguments)
    for at in range(len(text) + 1):
        message, deltas = read(family, [text[:at], text[at:]])
        assert calls_of(message) == [("f", arguments)]
        assert message["content"] is None
        named = [c for d in deltas for c in d.get("tool_calls", []) if "id" in c]
        assert [c["function"]["name"] for c in named] == ["f"]


@pytest.mark.parametrize("family", FORMS)
def test_character_by_character_equals_whole(family):
    calls = list(zip(NAMES, ARGUMENTS[:3], strict=True))
    text = write(family, calls)
    assert calls_of(read(family, [text])[0]) == calls
    message, deltas = read(family, list(text))
    assert calls_of(message) == calls
    assert all(
        piece["function"]["arguments"] is not None
        for delta in deltas
        for piece in delta.get("tool_calls", [])
    )
    ids = [call["id"] for call in message["tool_calls"]]
    assert len(set(ids)) == len(ids)


PIECES = [
    *("<tool_call>", "</tool_call>", "[TOOL_CALLS]", "[ARGS]", "[CALL_ID]", "<|python_tag|>"),
    *(DeepSeekParser.BEGIN, DeepSeekParser.SEPARATOR, DeepSeekParser.END, "```json", "```"),
    *DeepSeekParser.DECORATION[:2],
    *('{"name": "f", "arguments": {"a": [1, "}"]}}', '{"name": "g"}', '{"x": 1}', "{}", '"', "{"),
    *(
        "name",
        " ",
        "\n",
        "[",
        "]",
        ",",
        ";",
        "text",
        "<",
        "}",
        "12",
        "[TOOL",
        "<think>",
        "</think>",
    ),
]


@pytest.mark.parametrize("family", PARSERS.names())
@settings(max_examples=300, deadline=None, derandomize=True, database=None)
@given(
    text=st.lists(st.sampled_from(PIECES), max_size=9).map("".join),
    cuts=st.lists(st.integers(0, 200), max_size=4),
)
def test_any_cut_of_any_text_gives_the_same_message(family, text, cuts):
    """What is streamed joins to what is answered whole, sense or nonsense."""
    places = [0, *sorted(min(cut, len(text)) for cut in cuts), len(text)]
    pieces = [text[a:b] for a, b in itertools.pairwise(places)]
    for is_open in (None, False):
        whole = read(family, [text], reasoning_is_open=is_open)[0]
        for way in (pieces, list(text) or [""]):
            cut = read(family, way, reasoning_is_open=is_open)[0]
            assert calls_of(cut) == calls_of(whole)
            keys = ("content", "reasoning_content")
            assert [cut.get(k) for k in keys] == [whole.get(k) for k in keys]


@pytest.mark.parametrize("family", ["hermes", "deepseek", *FORMS[-4:]])
def test_text_before_calls_is_content(family):
    text = "Let me look.\n" + write(family, [("f", '{"a": 1}')])
    for pieces in ([text], list(text)):
        message, _ = read(family, pieces)
        assert message["content"] == "Let me look.\n"
        assert calls_of(message) == [("f", '{"a": 1}')]


@pytest.mark.parametrize(
    ("family", "text"),
    [
        ("hermes", "see <tool"),
        ("hermes", "a <tool_call> b"),
        ("hermes", "<tool_call>\nno object\n</tool_call> after"),
        ("hermes", '<tool_call>\n{"nam'),
        ("hermes", '<tool_call>{"title": "x"}</tool_call>'),
        ("llama", '{"colour": "red"}'),
        ("llama", "{hello} world"),
        ("generic", "[1, 2]"),
        ("generic", '  "quoted"'),
        ("mistral", "I would [TOOL"),
        ("mistral", "[TOOL_CALLS] none"),
        ("mistral", "[TOOL_CALLS] not a call"),
        ("mistral", "[TOOL_CALLS]name[AR"),
        ("mistral", "[TOOL_CALLS]name[ARGS"),
        ("mistral", "[TOOL_CALLS]a[CALL_ID]b"),
        ("mistral", "[TOOL_CALLS]!{}"),
        ("mistral", "[TOOL_CALLS][ARGS]{}"),
        ("mistral", "see [TOOL_CALLS]"),
        ("deepseek", "x <\uff5ctool"),
        ("deepseek", "plain ```json\n{}\n``` text"),
    ],
)
def test_what_is_no_call_is_content_to_the_letter(family, text):
    """Text that a parser had held back was thrown away at the end."""
    for pieces in ([text], list(text)):
        message, _ = read(family, pieces)
        assert "tool_calls" not in message
        assert message["content"] == text


def test_call_without_arguments():
    """A call without parameters lost its arguments when streamed."""
    for text in ('{"name": "f"}', '{"name": "f", "arguments": {}}'):
        for pieces in ([text], list(text)):
            assert calls_of(read("generic", pieces)[0]) == [("f", "{}")]


def test_arguments_before_the_name():
    text = '{"arguments": {"a": 1}, "id": 7, "name": "f"}'
    for pieces in ([text], list(text)):
        assert calls_of(read("generic", pieces)[0]) == [("f", '{"a": 1}')]


@pytest.mark.parametrize("cut", [1, 5, 9])
def test_cut_call_with_arguments_after_a_marker(cut):
    text = '[TOOL_CALLS]f[ARGS]{"a": "lon"}'
    for pieces in ([text[:-cut]], list(text[:-cut])):
        assert calls_of(read("mistral", pieces)[0]) == [("f", '{"a": "lon"}'[:-cut])]


@pytest.mark.parametrize("family", ["hermes", "deepseek", *FORMS[-4:]])
@pytest.mark.parametrize("after", [" and more,  you see.\n", "\n\nx"])
def test_text_after_calls_is_content(family, after):
    """White space was left out where each character came by itself, and only there."""
    text = write(family, [("f", "{}"), ("g", "{}")]) + after
    for pieces in ([text], list(text)):
        message, _ = read(family, pieces)
        assert [name for name, _ in calls_of(message)] == ["f", "g"]
        assert message["content"] == after


def test_cut_call_keeps_what_is_there():
    text = '<tool_call>{"name": "f", "arguments": {"a": "lon'
    message, _ = read("hermes", list(text))
    assert calls_of(message) == [("f", '{"a": "lon')]


def test_one_call_at_most():
    text = write("hermes", [("f", "{}"), ("g", "{}")])
    assert calls_of(read("hermes", [text], max_calls=1)[0]) == [("f", "{}")]


def test_newer_deepseek_form():
    bar, low = "\uff5c", "\u2581"
    text = (
        f"<{bar}tool{low}calls{low}begin{bar}><{bar}tool{low}call{low}begin{bar}>f"
        f'<{bar}tool{low}sep{bar}>{{"a": 1}}<{bar}tool{low}call{low}end{bar}>'
    )
    for pieces in ([text], list(text)):
        assert calls_of(read("deepseek", pieces)[0]) == [("f", '{"a": 1}')]


@pytest.mark.parametrize(
    ("template", "family"),
    [
        ("... <tool_call> ...", "hermes"),
        ("[TOOL_CALLS]", "mistral"),
        ("<|python_tag|>", "llama"),
        ("<\uff5ctool\u2581call\u2581begin\uff5c>", "deepseek"),
        ("{{ messages }}", "generic"),
        (None, "generic"),
    ],
)
def test_family_of_a_template(template, family):
    assert parser_for(template) == family


@pytest.mark.parametrize("name", list(TAGS))
def test_tags_of_other_families(name):
    begin, end = TAGS[name]
    assert tags_for(f"... {begin} ...") == TAGS[name]
    text = f"{begin}\nWhy <not> [so]?{end}\n\nBecause."
    for pieces in ([text], list(text)):
        message = read("hermes", pieces, reasoning_is_open=False, tags=TAGS[name])[0]
        assert (message["reasoning_content"], message["content"]) == ("Why <not> [so]?", "Because.")


class TestReasoning:
    def read(self, pieces: list[str], is_open: bool = False) -> dict[str, Any]:
        return read("hermes", pieces, reasoning_is_open=is_open)[0]

    @pytest.mark.parametrize("is_open", [False, True])
    def test_thoughts_are_split_off(self, is_open):
        text = "a <b> </thin k</think>\n\nIt is <think> red."
        text = text if is_open else "<think>\n" + text
        for pieces in ([text], list(text)):
            message = self.read(pieces, is_open)
            assert message["reasoning_content"] == "a <b> </thin k"
            assert message["content"] == "It is <think> red."

    def test_calls_come_after_thoughts(self):
        inner = write("hermes", [("wrong", "{}")])
        text = f"<think>{inner}</think>" + write("hermes", [("f", "{}")])
        for pieces in ([text], list(text)):
            message = self.read(pieces)
            assert message["reasoning_content"] == inner
            assert calls_of(message) == [("f", "{}")]

    @pytest.mark.parametrize("text", ["<thi", "<thing> x", "no thoughts", " \n", ""])
    def test_without_thoughts(self, text):
        for pieces in ([text], list(text) or [""]):
            message = self.read(pieces)
            assert message["content"] == text
            assert "reasoning_content" not in message

    def test_cut_thoughts(self):
        for pieces in (["<think>so </thi"], list("<think>so </thi")):
            assert self.read(pieces)["reasoning_content"] == "so </thi"
