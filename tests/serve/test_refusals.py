"""Every bad request gets the one error shape, names what is wrong, and harms nobody."""

from __future__ import annotations

import json
from typing import Any

import pytest

from infopt.serve.protocol.chat import ChatRequest
from infopt.serve.protocol.completions import CompletionRequest

COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"
HI = [{"role": "user", "content": "hi"}]


def error_of(answer: Any, *statuses: int) -> dict[str, Any]:
    assert answer.status_code in statuses, answer.text
    assert set(answer.json()) == {"error"}
    error = answer.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    return error


@pytest.mark.parametrize(
    ("body", "headers", "status"),
    [
        (b'{"prompt": "x"}', {}, 415),
        (b'{"prompt": "x"}', {"content-type": "text/plain"}, 415),
        (b"{", {"content-type": "application/json"}, 400),
        (b"[]", {"content-type": "application/json"}, 400),
        (b"", {"content-type": "application/json"}, 400),
        ('{"prompt": "x"}'.encode("utf-16"), {"content-type": "application/json"}, 400),
        (b'{"prompt": "x", "prompt": "y"}', {"content-type": "application/json"}, 400),
        (b'{"prompt": "x", "temperature": NaN}', {"content-type": "application/json"}, 400),
        (b'{"prompt": "x", "temperature": 1e999}', {"content-type": "application/json"}, 400),
        (
            b'{"prompt": "x", "seed": ' + b"9" * 5000 + b"}",
            {"content-type": "application/json"},
            400,
        ),
        (b"[" * 200_000, {"content-type": "application/json"}, 400),
    ],
)
@pytest.mark.parametrize("path", [COMPLETIONS, CHAT, "/tokenize", "/detokenize"])
def test_bodies_that_are_no_request(server, body, headers, status, path):
    """Wrong content types and broken JSON were a 500."""
    error_of(server.http.post(path, content=body, headers=headers), status)
    server.complete([5], max_tokens=1)


class TestUnknownFields:
    """Fields in the wrong place or misspelt were ignored without a word."""

    def test_top_k_is_honoured(self, server):
        options = {"max_tokens": 8, "temperature": 5.0}
        greedy = server.complete([5, 6], max_tokens=8, temperature=0)["choices"][0]["text"]
        assert server.complete([5, 6], top_k=1, **options)["choices"][0]["text"] == greedy

    @pytest.mark.parametrize(
        ("fields", "param", "hint"),
        [
            ({"topk": 1}, "topk", "'top_k'"),
            ({"extra_body": {"top_k": 1}}, "extra_body", "Known fields"),
            ({"stream_options": {"include_usag": True}}, "stream_options.include_usag", "usage"),
        ],
    )
    def test_others_are_named(self, server, fields, param, hint):
        error = error_of(server.post(COMPLETIONS, prompt=[5], **fields), 400)
        assert (error["param"], error["code"]) == (param, "unknown_field")
        assert hint in error["message"]

    def test_inside_messages(self, server):
        error = error_of(server.post(CHAT, messages=[{"role": "user", "contents": "hi"}]), 400)
        assert error["param"] == "messages.0.contents"
        assert "'content'" in error["message"]

    @pytest.mark.parametrize("value", ["1", 1.5, True, [1]])
    def test_wrong_types_are_not_converted(self, server, value):
        error = error_of(server.post(COMPLETIONS, prompt=[5], top_k=value), 400)
        assert error["param"] == "top_k"


@pytest.mark.parametrize(
    "bias", [{"320": 5}, {"-1": 5}, {"abc": 5}, {"5": "x"}, {"5": 101}, {"5": float("1e300")}]
)
def test_bad_logit_bias(server, bias):
    """An id at or beyond the vocabulary ended the scheduler."""
    error = error_of(server.post(COMPLETIONS, prompt=[5], logit_bias=bias), 400)
    assert error["param"].startswith("logit_bias")
    server.complete([5], max_tokens=1, logit_bias={"5": 100})


@pytest.mark.parametrize(
    ("request_class", "path", "needed"),
    [
        (CompletionRequest, COMPLETIONS, {"prompt": [5, 6]}),
        (ChatRequest, CHAT, {"messages": HI}),
    ],
)
def test_null_is_no_value_for_any_field(server, request_class, path, needed):
    """Clients that write all their fields send null for most of them, one by one or all at once."""
    plain = needed | {"max_tokens": 4, "temperature": 0}
    expected = server.post(path, **plain).json()["choices"]
    names = request_class.model_fields.keys() - plain.keys()
    assert len(names) > 20
    for fields in (dict.fromkeys(names), *({name: None} for name in sorted(names))):
        answer = server.post(path, **plain, **fields)
        assert answer.status_code == 200, (fields, answer.text)
        assert answer.json()["choices"] == expected, fields


def test_empty_containers_are_the_same_as_nothing(server):
    """Client libraries send empty containers by default."""
    plain = {"max_tokens": 4, "temperature": 0}
    expected = server.complete([5, 6], **plain)["choices"]
    empty = server.complete([5, 6], **plain, logit_bias={}, stop=[], stop_token_ids=[])
    assert empty["choices"] == expected


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"best_of": 5, "n": 2}, "best_of"),
        ({"suffix": "x"}, "suffix"),
        ({"kv_eviction": {"method": "snapkv"}}, "kv_eviction"),
        ({"kv_eviction": {"method": "snapkv", "budget": 0.5, "windw": 4}}, "windw"),
        ({"kv_eviction": "snapkv"}, "kv_eviction"),
        ({"n": 0}, "n"),
        ({"temperature": -1}, "temperature"),
        ({"top_p": 0}, "top_p"),
        ({"stop": [""]}, "stop"),
        ({"logprobs": 65}, "logprobs"),
        ({"stream_options": {"include_usage": True}}, "stream_options"),
        ({"prompt": []}, "prompt"),
        ({"prompt": [[]]}, "prompt"),
        ({"prompt": ""}, "prompt"),
        ({"prompt": [5, 320]}, "prompt"),
        ({"prompt": [5, -1]}, "prompt"),
        ({"prompt": [5, "x"]}, "prompt"),
        ({"prompt": {"text": "x"}}, "prompt"),
        ({"prompt": None}, "prompt"),
        ({"max_tokens": 4, "min_tokens": 5}, "min_tokens"),
    ],
)
def test_values_are_checked_before_anything_runs(server, fields, param):
    error = error_of(server.post(COMPLETIONS, **({"prompt": [5]} | fields)), 400)
    assert error["type"] == "invalid_request_error"
    assert (error["param"] or "").split(".")[0] == param


def test_one_bad_prompt_of_several_runs_none(server):
    num_requests = server.engine.stats.num_requests
    error_of(server.post(COMPLETIONS, prompt=[[5, 6], [7, 400]]), 400)
    assert server.engine.stats.num_requests == num_requests


HALF = "\ud83d"
TOOL = {"type": "function", "function": {"name": "f"}}
HALVES: list[tuple[str, dict[str, Any]]] = [
    (COMPLETIONS, {"prompt": HALF}),
    (COMPLETIONS, {"prompt": ["x", HALF]}),
    (COMPLETIONS, {"model": HALF}),
    (COMPLETIONS, {"user": HALF}),
    (COMPLETIONS, {"stop": HALF}),
    (COMPLETIONS, {"stop": ["x", HALF]}),
    (COMPLETIONS, {"logit_bias": {HALF: 1}}),
    (COMPLETIONS, {HALF: 1}),
    (COMPLETIONS, {"metadata": {HALF: HALF}}),
    (COMPLETIONS, {"structured_outputs": {"regex": HALF}}),
    (COMPLETIONS, {"structured_outputs": {"choice": ["a", HALF]}}),
    (COMPLETIONS, {"structured_outputs": {"grammar": f'start: "{HALF}"'}}),
    (COMPLETIONS, {"structured_outputs": {"json": {"enum": [HALF]}}}),
    (CHAT, {"messages": [{"role": "user", "content": HALF}]}),
    (CHAT, {"messages": [{"role": "user", "content": [{"type": "text", "text": HALF}]}]}),
    (CHAT, {"messages": [{"role": "user", "content": "x", "name": HALF}]}),
    (CHAT, {"response_format": {"type": HALF}}),
    (CHAT, {"tools": [TOOL | {"function": {"name": "f", "description": HALF}}]}),
    (CHAT, {"tools": [TOOL], "tool_choice": {"type": "function", "function": {"name": HALF}}}),
    (CHAT, {"chat_template_kwargs": {"x": HALF}}),
    ("/tokenize", {"prompt": HALF}),
]


@pytest.mark.parametrize(("path", "fields"), HALVES)
@pytest.mark.parametrize("streams", [False, True])
def test_half_a_surrogate_pair(server, path, fields, streams):
    """It came through the JSON escape and broke the tokenizer or the writer of the answer."""
    body = {COMPLETIONS: {"prompt": [5]}, CHAT: {"messages": HI}}.get(path, {}) | fields
    if path in (COMPLETIONS, CHAT):
        body = {"max_tokens": 1, "stream": streams} | body
    headers = {"content-type": "application/json"}
    answer = server.http.post(path, content=json.dumps(body), headers=headers)
    error = error_of(answer, 400)
    assert "half of a surrogate pair" in error["message"]
    assert error["param"].split(".")[0] in {*fields, r"\ud83d"}
    server.complete([5], max_tokens=1)


def test_a_whole_surrogate_pair_is_a_character(server):
    headers = {"content-type": "application/json"}
    content = r'{"prompt": "\ud83d\ude00 and \\ud83d"}'  # the second is a backslash and letters
    answer = server.http.post("/tokenize", content=content, headers=headers).json()
    assert answer["tokens"] == server.tokenizer.encode("\U0001f600 and \\ud83d")


def test_odd_but_valid_text(server):
    server.complete("a\0b" + "\u0301" * 100, max_tokens=1)
    server.complete("\U0010ffff", max_tokens=1)


class TestRoutes:
    def test_unknown_model_lists_the_models(self, server):
        for path, body in ((COMPLETIONS, {"prompt": "x"}), (CHAT, {"messages": HI})):
            error = error_of(server.post(path, model="tinny", **body), 404)
            assert error["param"] == "model"
            assert "'tiny'" in error["message"]
            assert "Models: tiny" in error["message"]

    def test_unknown_path(self, server):
        error = error_of(server.http.get("/v1/nothing"), 404)
        assert error["code"] == "not_found"

    def test_wrong_method(self, server):
        answer = server.http.get(COMPLETIONS)
        error_of(answer, 405)
        assert answer.headers["allow"] == "POST"

    def test_models(self, server):
        (card,) = server.http.get("/v1/models").json()["data"]
        assert (card["id"], card["object"]) == ("tiny", "model")
        assert card["max_model_len"] == 512
        assert server.http.get("/v1/models/tiny").json() == card
        error_of(server.http.get("/v1/models/other/name"), 404)


class TestBodyLimit:
    @pytest.fixture
    def small(self, start_server):
        return start_server(max_body_bytes=200)

    def test_declared_and_undeclared_length(self, small):
        body = json.dumps({"prompt": "x" * 300}).encode()
        headers = {"content-type": "application/json"}
        pieces = (body[i : i + 50] for i in range(0, len(body), 50))
        for content in (body, pieces):
            answer = small.http.post(COMPLETIONS, content=content, headers=headers)
            assert error_of(answer, 413)["code"] == "body_too_long"
        small.complete([5], max_tokens=1)


def test_tokenize_and_back(server):
    text = "Zwölf <|im_start|> x"
    answer = server.post("/tokenize", prompt=text).json()
    assert answer["tokens"] == server.tokenizer.encode(text)
    assert answer["count"] == len(answer["tokens"])
    assert server.post("/detokenize", tokens=answer["tokens"]).json()["prompt"] == text
    error_of(server.post("/tokenize"), 400)
    error_of(server.post("/tokenize", prompt="x", messages=HI), 400)
    error_of(server.post("/detokenize", tokens=[5000]), 400)
