"""Structured output over HTTP."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pydantic
import pytest
import torch

from infopt.engine import rejection as sampling_module

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
HI = [{"role": "user", "content": "hi"}]
SCHEMA = {
    "type": "object",
    "properties": {"colour": {"enum": ["red", "Ärger"]}, "n": {"type": "integer", "maximum": 99}},
    "required": ["colour", "n"],
    "additionalProperties": False,
}


def format_of(schema: Any, **extra: Any) -> dict[str, Any]:
    return {"type": "json_schema", "json_schema": {"name": "x", "schema": schema} | extra}


def check(text: str) -> None:
    value = json.loads(text)
    assert value["colour"] in ("red", "Ärger")
    assert isinstance(value["n"], int)
    assert value["n"] <= 99


def test_schema_composes_with_everything(server):
    """With n, seeds, log-probabilities, penalties and streams; a random model writes noise."""
    options: dict[str, Any] = {
        "n": 3,
        "seed": 5,
        "temperature": 1.5,
        "max_tokens": 120,
        "frequency_penalty": 0.3,
        "logprobs": True,
        "top_logprobs": 5,
        "response_format": format_of(SCHEMA, strict=True),
    }
    answer = server.chat(**options)
    for choice in answer["choices"]:
        check(choice["message"]["content"])
        assert choice["finish_reason"] == "stop"
        # raw values: what the mask forbids has one too, and all are finite
        assert all(len(e["top_logprobs"]) == 5 for e in choice["logprobs"]["content"])
    again = server.chat(**options)
    assert [c["message"] for c in again["choices"]] == [c["message"] for c in answer["choices"]]
    events = server.stream(CHAT, messages=HI, **options)
    for choice in answer["choices"]:
        text = "".join(
            c["delta"].get("content", "")
            for e in events
            for c in e["choices"]
            if c["index"] == choice["index"]
        )
        assert text == choice["message"]["content"]


def test_json_mode(server):
    text = server.chat(
        response_format={"type": "json_object"}, seed=1, max_tokens=300, temperature=0.3
    )["choices"][0]["message"]["content"]
    try:
        assert isinstance(json.loads(text), dict)
    except json.JSONDecodeError:
        assert (
            server.chat(  # cut by the limit, not by the grammar
                response_format={"type": "json_object"}, seed=1, max_tokens=300, temperature=0.3
            )["choices"][0]["finish_reason"]
            == "length"
        )


@pytest.mark.parametrize(
    ("form", "is_right"),
    [
        ({"regex": "[0-9]{3}-[a-f]"}, lambda t: len(t) == 5 and t[3] == "-"),
        ({"choice": ["yes", "no"]}, lambda t: t in ("yes", "no")),
        ({"grammar": 'start: "(" start ")" | "x"'}, lambda t: t.count("(") == t.count(")")),
        ({"json": SCHEMA}, lambda t: check(t) is None),
    ],
)
def test_other_forms_on_both_routes(server, form, is_right):
    options = {"structured_outputs": form, "max_tokens": 120, "seed": 2}
    choice = server.complete([5], **options)["choices"][0]
    if choice["finish_reason"] == "stop":
        assert is_right(choice["text"])
    else:
        assert "grammar" in form  # parentheses may nest for ever
    content = server.chat(**options)["choices"][0]["message"]["content"]
    assert is_right(content) or "grammar" in form


def test_form_wins_over_min_tokens_and_ignore_eos(server):
    """When nothing but an end is allowed, an end it is: never an unconstrained token."""
    options = {"structured_outputs": {"choice": ["yes"]}, "max_tokens": 20}
    for extra in ({"min_tokens": 15}, {"ignore_eos": True}, {"logit_bias": {"50": 100}}):
        choice = server.complete([5], **options, **extra)["choices"][0]
        assert (choice["text"], choice["finish_reason"]) == ("yes", "stop")


def test_neighbours_are_not_touched(server):
    """The masks of one request must not reach another one in the batch."""
    plain = {"max_tokens": 30, "temperature": 0, "ignore_eos": True}
    alone = server.complete([7, 8, 9], **plain)["choices"][0]["text"]
    with ThreadPoolExecutor(4) as pool:
        forms = [
            pool.submit(server.chat, response_format=format_of(SCHEMA), max_tokens=100, seed=i)
            for i in range(3)
        ]
        beside = [pool.submit(server.complete, [7, 8, 9], **plain) for _ in range(3)]
        assert {f.result()["choices"][0]["text"] for f in beside} == {alone}
        for form in forms:
            check(form.result()["choices"][0]["message"]["content"])


def test_preemption_changes_nothing(start_server):
    options = {"response_format": format_of(SCHEMA), "max_tokens": 100, "temperature": 1.0}
    roomy = start_server({"max_num_seqs": 4})
    tight = start_server({"max_num_seqs": 4, "num_kv_pages": 10})
    alone = [roomy.chat(seed=i, **options)["choices"] for i in range(6)]
    with ThreadPoolExecutor(6) as pool:
        together = list(pool.map(lambda i: tight.chat(seed=i, **options)["choices"], range(6)))
    assert together == alone
    assert tight.engine.stats.num_preemptions > 0


@pytest.mark.parametrize(
    ("schema", "param", "word"),
    [
        ({"properties": {"a": {"uniqueItems": True}}}, "properties.a.uniqueItems", "uniqueItems"),
        ({"enum": []}, "json_schema", "empty"),
        ({"$ref": "http://localhost:1/x"}, "json_schema", "localhost"),
    ],
)
def test_schemas_that_cannot_be_enforced_are_refused(server, schema, param, word):
    for streams in (False, True):
        answer = server.post(CHAT, messages=HI, stream=streams, response_format=format_of(schema))
        error = answer.json()["error"]
        assert (answer.status_code, error["param"]) == (400, param)
        assert word in error["message"]


@pytest.mark.parametrize(
    "fields",
    [
        {"response_format": {"type": "json_schema"}},
        {"response_format": {"type": "yaml"}},
        {"response_format": {"type": "text", "json_schema": {"name": "x", "schema": {}}}},
        {"structured_outputs": {}},
        {"structured_outputs": {"regex": "a", "choice": ["b"]}},
        {"structured_outputs": {"choice": []}},
        {"structured_outputs": {"regx": "a"}},
        {"structured_outputs": {"regex": "("}},
        {"structured_outputs": {"regex": "a"}, "response_format": {"type": "json_object"}},
    ],
)
def test_contradictions(server, fields):
    answer = server.post(COMPLETIONS, prompt=[5], **fields)
    assert answer.status_code == 400
    assert answer.json()["error"]["param"]


def test_text_and_null_are_no_constraint(server):
    options = {"max_tokens": 6, "temperature": 0}
    expected = server.chat(**options)["choices"]
    assert server.chat(**options, response_format={"type": "text"})["choices"] == expected
    assert server.chat(**options, response_format=None)["choices"] == expected


def test_schema_escapes_in_the_body(server):
    """A schema sent as UTF-8 and one sent with escapes are the same schema."""
    body = {
        "messages": HI,
        "model": "tiny",
        "seed": 3,
        "max_tokens": 40,
        "response_format": format_of({"enum": ["Ärger", "離線", "🫠"]}),
    }
    texts = set()
    for ascii_only in (True, False):
        content = json.dumps(body, ensure_ascii=ascii_only).encode()
        answer = server.http.post(
            CHAT, content=content, headers={"content-type": "application/json"}
        )
        texts.add(answer.json()["choices"][0]["message"]["content"])
    assert len(texts) == 1
    assert json.loads(texts.pop()) in ("Ärger", "離線", "🫠")


@pytest.mark.parametrize("value", ["Ärger", "離線", "🫠"])
def test_values_come_in_the_tokens_of_the_plain_text(server, monkeypatch, value):
    """Other than ASCII could be had as escapes only, in many more tokens, or not at all."""
    real = sampling_module.sample
    wanted = server.tokenizer.encode(f'"{value}"', add_special_tokens=False)

    def prefer(logits: Any, rows: list[Any], draw: Any) -> list[int]:
        given = torch.zeros_like(logits)
        for row, request in zip(given, rows, strict=True):
            row[wanted[min(request.num_output_tokens, len(wanted) - 1)]] = 9.0
        return real(given, rows, draw)

    monkeypatch.setattr(sampling_module, "sample", prefer)
    for ascii_only in (True, False):
        form = {"json": {"enum": ["Ärger", "離線", "🫠"]}}
        body = {"prompt": [5], "temperature": 0, "max_tokens": 40, "structured_outputs": form}
        content = json.dumps(body, ensure_ascii=ascii_only).encode()
        headers = {"content-type": "application/json"}
        answer = server.http.post(COMPLETIONS, content=content, headers=headers).json()
        assert answer["choices"][0]["text"] == f'"{value}"'
        assert answer["usage"]["completion_tokens"] in (len(wanted), len(wanted) + 1)  # and its end


def test_parsed_by_the_openai_client(server):
    class Answer(pydantic.BaseModel):
        colour: str = pydantic.Field(max_length=8)
        is_warm: bool

    parsed = server.client.chat.completions.parse(
        model="tiny", messages=HI, response_format=Answer, max_tokens=150, seed=7
    )
    assert isinstance(parsed.choices[0].message.parsed, Answer)


def test_grammar_that_fails_ends_its_own_request_only(server, monkeypatch):
    from infopt.structured.constraint import GrammarConstraint

    monkeypatch.setattr(GrammarConstraint, "accept", lambda self, token: False)
    plain = {"max_tokens": 20, "temperature": 0, "ignore_eos": True}
    with ThreadPoolExecutor(2) as pool:
        beside = pool.submit(server.complete, [5], **plain)
        answer = server.post(COMPLETIONS, prompt=[5], structured_outputs={"regex": "a+"})
        assert answer.status_code == 500
        assert beside.result()["usage"]["completion_tokens"] == 20
