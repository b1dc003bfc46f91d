"""``/v1/chat/completions``: the form of its streams, templates, log-probabilities."""

from __future__ import annotations

from typing import Any

import pytest

PATH = "/v1/chat/completions"
EOS = 1
HI = [{"role": "user", "content": "hi"}]


def choices_of(events: list[dict[str, Any]], index: int = 0) -> list[dict[str, Any]]:
    return [c for e in events for c in e["choices"] if c["index"] == index]


def test_whole_answer(server):
    answer = server.chat("hi", max_tokens=4, temperature=0, ignore_eos=True)
    assert answer["object"] == "chat.completion"
    message = answer["choices"][0]["message"]
    assert message["role"] == "assistant"
    assert message["content"]
    assert answer["choices"][0]["finish_reason"] == "length"


def test_form_of_a_stream(server):
    """Roles in every delta, null contents, a fresh id per event: all have confused clients."""
    runs = [
        server.stream(PATH, messages=HI, n=2, max_tokens=5, seed=index, ignore_eos=True)
        for index in range(2)
    ]
    for events in runs:
        assert {e["object"] for e in events} == {"chat.completion.chunk"}
        assert len({(e["id"], e["created"], e["model"]) for e in events}) == 1
        for index in range(2):
            pieces = choices_of(events, index)
            assert pieces[0]["delta"]["role"] == "assistant"
            assert sum("role" in p["delta"] for p in pieces) == 1
            assert all(p["delta"].get("content", "") is not None for p in pieces)
            assert [p["finish_reason"] for p in pieces if p["finish_reason"]] == ["length"]
            assert pieces[-1]["finish_reason"] == "length"
    assert runs[0][0]["id"] != runs[1][0]["id"]


def test_role_comes_without_any_text(server, script):
    """When nothing was written the role was never sent."""
    script([EOS])
    events = server.stream(PATH, messages=HI)
    (piece,) = choices_of(events)
    assert piece["delta"] == {"role": "assistant", "content": ""}
    assert piece["finish_reason"] == "stop"


def test_role_comes_before_a_character_in_pieces(server, script, words):
    script([*words(b"\xe2\x82", b"\xac"), EOS])
    pieces = choices_of(server.stream(PATH, messages=HI))
    assert pieces[0]["delta"].get("role") == "assistant"
    assert sum("role" in p["delta"] for p in pieces) == 1
    assert "".join(p["delta"].get("content", "") for p in pieces) == "€"


def test_stream_equals_whole(server):
    options = {"messages": HI, "max_tokens": 12, "seed": 4, "n": 2}
    whole = server.chat(**options)
    events = server.stream(PATH, **options)
    for choice in whole["choices"]:
        pieces = choices_of(events, choice["index"])
        text = "".join(p["delta"].get("content", "") for p in pieces)
        assert text == choice["message"]["content"]
        assert pieces[-1]["finish_reason"] == choice["finish_reason"]


def test_forms_of_content_agree(server):
    """A list of parts ended in an error, or as a Python list in the prompt."""
    one = [{"type": "text", "text": "hi"}]
    two = [{"type": "text", "text": "hi"}, {"type": "text", "text": "there"}]
    answers = [
        server.chat(messages=[{"role": "user", "content": content}], max_tokens=4, temperature=0)
        for content in ("hi", one)
    ]
    assert answers[0]["usage"]["prompt_tokens"] == answers[1]["usage"]["prompt_tokens"]
    assert answers[0]["choices"] == answers[1]["choices"]
    tokens = [
        server.post("/tokenize", messages=[{"role": "user", "content": c}]).json()["tokens"]
        for c in (two, "hi\nthere")
    ]
    assert tokens[0] == tokens[1]


def test_null_content(server):
    messages = [*HI, {"role": "assistant", "content": None}, *HI]
    assert "None" not in _rendered(server, messages)
    server.chat(messages=messages, max_tokens=1)
    refused = server.post(PATH, messages=[{"role": "user", "content": None}])
    assert refused.status_code == 400
    assert refused.json()["error"]["param"] == "messages[0].content"


def _rendered(server: Any, messages: list[dict[str, Any]]) -> str:
    tokens = server.post("/tokenize", messages=messages).json()["tokens"]
    return server.post("/detokenize", tokens=tokens).json()["prompt"]


def test_images_are_refused_by_name(server):
    part = {"type": "image_url", "image_url": {"url": "http://localhost/x.png"}}
    answer = server.post(PATH, messages=[{"role": "user", "content": [part]}])
    assert answer.status_code == 400
    assert "image_url" in answer.json()["error"]["message"]
    assert answer.json()["error"]["param"] == "messages.0.content"


def test_developer_is_system(server):
    by_role = [
        _rendered(server, [{"role": role, "content": "Be brief."}, *HI])
        for role in ("system", "developer")
    ]
    assert by_role[0] == by_role[1]
    assert "system" in by_role[0]


def test_same_tokens_as_a_rendered_prompt(server):
    """The chat route and a prompt rendered by hand gave different answers."""
    ids = server.post("/tokenize", messages=HI).json()["tokens"]
    assert ids == server.tokenizer.apply_chat_template(HI)
    options = {"max_tokens": 12, "temperature": 0, "ignore_eos": True}
    chat = server.chat(**options)
    completion = server.complete(ids, **options)
    assert chat["usage"]["prompt_tokens"] == len(ids)
    assert chat["choices"][0]["message"]["content"] == completion["choices"][0]["text"]


class TestLogprobs:
    def test_shape(self, server):
        answer = server.chat(max_tokens=3, logprobs=True, top_logprobs=2, temperature=0)
        content = answer["choices"][0]["logprobs"]["content"]
        assert len(content) == 3
        for entry in content:
            assert len(entry["top_logprobs"]) == 2
            assert entry["top_logprobs"][0]["token"] == entry["token"]
            assert entry["logprob"] == entry["top_logprobs"][0]["logprob"]

    def test_without_alternatives(self, server):
        content = server.chat(max_tokens=2, logprobs=True)["choices"][0]["logprobs"]["content"]
        assert [entry["top_logprobs"] for entry in content] == [[], []]

    def test_pieces_of_a_character(self, server, script, words):
        """Alternatives were decoded as if they followed each other, and parts came out empty."""
        script(words(b"\xe2\x80", b"\x9c"))
        answer = server.chat(max_tokens=2, logprobs=True, top_logprobs=3)
        choice = answer["choices"][0]
        raw = bytes(b for entry in choice["logprobs"]["content"] for b in entry["bytes"])
        assert raw.decode() == choice["message"]["content"] == "\u201c"
        for entry in choice["logprobs"]["content"]:
            assert all(top["token"] and top["bytes"] for top in entry["top_logprobs"])

    def test_stream(self, server):
        options = {"messages": HI, "max_tokens": 6, "seed": 2, "logprobs": True, "top_logprobs": 1}
        whole = server.chat(**options)["choices"][0]["logprobs"]["content"]
        pieces = choices_of(server.stream(PATH, **options))
        streamed = [e for p in pieces if p["logprobs"] for e in p["logprobs"]["content"]]
        assert streamed == whole

    @pytest.mark.parametrize("fields", [{"top_logprobs": 2}, {"top_logprobs": 21}])
    def test_contradictions_are_refused(self, server, fields):
        answer = server.post(PATH, messages=HI, **fields)
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, "top_logprobs")


def test_both_names_of_max_tokens(server):
    assert server.chat(max_completion_tokens=2)["usage"]["completion_tokens"] <= 2
    assert server.chat(max_completion_tokens=2, max_tokens=2)["choices"]
    refused = server.post(PATH, messages=HI, max_tokens=2, max_completion_tokens=3)
    assert refused.status_code == 400


class TestBos:
    """Template and tokenizer each added a BOS, or after a repair neither did."""

    @pytest.fixture
    def bos(self, start_server, make_engine, make_tiny_tokenizer, monkeypatch):
        from infopt.models.tokenizer import Tokenizer

        template = "<s>{% for m in messages %}{{ m['content'] }}{% endfor %}"
        engine = make_engine()
        engine.tokenizer = Tokenizer(make_tiny_tokenizer(add_bos=True, chat_template=template))
        return start_server(engine)

    def test_exactly_one(self, bos):
        chat = bos.post("/tokenize", messages=HI).json()["tokens"]
        text = bos.post("/tokenize", prompt="hi").json()["tokens"]
        assert chat.count(0) == text.count(0) == 1
        assert chat == text == bos.tokenizer.apply_chat_template(HI)
        rendered = bos.post("/tokenize", prompt="<s>hi", add_special_tokens=False).json()
        assert rendered["tokens"] == chat
        assert bos.chat("hi", max_tokens=1)["usage"]["prompt_tokens"] == len(chat)
        assert bos.complete("hi", max_tokens=1)["usage"]["prompt_tokens"] == len(chat)
