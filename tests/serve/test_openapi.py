"""``/openapi.json`` says what is so: limits of fields, statuses, content types."""

from __future__ import annotations

from typing import Any

import pytest

PATHS = {"CompletionRequest": "/v1/completions", "ChatRequest": "/v1/chat/completions"}
NEEDS = {"top_logprobs": {"logprobs": True}, "min_tokens": {"max_tokens": 9}}
"""Fields without which another one is refused whatever its value."""


def limits_of(description: dict[str, Any], model: str) -> list[tuple[str, float, list[float]]]:
    """Return (field, accepted value, refused values) for each documented end of a range."""
    cases = []
    for name, field in description["components"]["schemas"][model]["properties"].items():
        types = {option.get("type") for option in field.get("anyOf", ())}
        number, step = (int, 1) if "integer" in types else (float, 1e-6)
        for keyword, sign in (("minimum", -1), ("maximum", 1)):
            if keyword in field:
                limit = number(field[keyword])
                cases.append((name, limit, [limit + sign * step]))
        if "exclusiveMinimum" in field:
            low = number(field["exclusiveMinimum"])
            cases.append((name, low + step, [low, low - step]))
    return cases


@pytest.mark.parametrize("model", list(PATHS))
def test_limits_are_the_real_ones(server, model):
    """A limit in the description that is not the one applied misleads generated clients."""
    cases = limits_of(server.http.get("/openapi.json").json(), model)
    assert {"temperature", "top_p", "n", "seed"} <= {name for name, _, _ in cases}
    base = {"prompt": [5]} if model == "CompletionRequest" else {}
    base |= {"max_tokens": 1} | ({} if base else {"messages": [{"role": "user", "content": "x"}]})
    for name, accepted, refused in cases:
        fields = base | NEEDS.get(name, {})
        if name == "max_completion_tokens":
            fields.pop("max_tokens")
        answer = server.post(PATHS[model], **(fields | {name: accepted}))
        assert answer.status_code == 200, (name, accepted, answer.text)
        for value in refused:
            answer = server.post(PATHS[model], **(fields | {name: value}))
            assert answer.status_code == 400, (name, value)
            assert name in answer.json()["error"]["param"]


def test_statuses(server):
    paths = server.http.get("/openapi.json").json()["paths"]
    assert "422" not in str(paths)
    generate = paths["/v1/completions"]["post"]["responses"]
    statuses = (200, 400, 401, 404, 413, 415, 429, 500, 503, 504)
    assert set(generate) == set(map(str, statuses))
    assert set(generate["200"]["content"]) == {"application/json", "text/event-stream"}
    assert set(paths["/metrics"]["get"]["responses"]["200"]["content"]) == {"text/plain"}
    assert "400" not in paths["/health"]["get"]["responses"]


def test_key_is_described_where_one_is_needed(start_server, server):
    described = start_server(api_key="secret").http.get("/openapi.json").json()
    assert described["components"]["securitySchemes"]["key"]["scheme"] == "bearer"
    assert described["paths"]["/v1/models"]["get"]["security"] == [{"key": []}]
    assert "security" not in described["paths"]["/health"]["get"]
    assert "securitySchemes" not in server.http.get("/openapi.json").json()["components"]


def test_wrong_method_is_not_a_wrong_body(server):
    """A POST without a content type to a route that takes none was called a bad type."""
    for path in ("/v1/models", "/v1/models/tiny", "/health", "/metrics", "/tokenizer_info"):
        answer = server.http.post(path)
        assert (answer.status_code, answer.headers["allow"]) == (405, "GET"), path
    assert server.http.post("/v1/nothing").status_code == 404
