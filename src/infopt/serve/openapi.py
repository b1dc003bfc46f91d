"""``/openapi.json``: what each route answers, errors included, and how to prove who one is."""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI
from pydantic.json_schema import models_json_schema

from infopt.serve.protocol.answers import Answer, ChatChunk, CompletionChunk, ErrorBody

OPEN_PATHS = ("/health", "/docs", "/openapi.json")
"""Routes that need no API key: they tell nothing about requests."""

_Responses = dict[int | str, dict[str, Any]]

_REF = "#/components/schemas/{model}"
_ALWAYS = (401, 500, 503)
_WITH_BODY = (400, 404, 413, 415)
_GENERATING = (429, 504)


def reading(answer: type[Answer], *errors: int) -> _Responses:
    """Return the description of a route without a body.

    Args:
        answer: Shape of a good answer.
        errors: Statuses of its own, beside those of every route.
    """
    return _described({200: {"model": answer}}, (*_ALWAYS, *errors))


def reading_text() -> _Responses:
    """Return the description of a route that answers plain text."""
    good = {"description": "Text", "content": {"text/plain": {"schema": {"type": "string"}}}}
    return _described({200: good}, _ALWAYS)


def posting(answer: type[Answer]) -> _Responses:
    """Return the description of a route with a JSON body."""
    return _described({200: {"model": answer}}, (*_ALWAYS, *_WITH_BODY))


def generating(answer: type[Answer], chunk: type[Answer]) -> _Responses:
    """Return the description of a route that answers whole or as a stream of events."""
    good = {"model": answer, "content": {"text/event-stream": {"schema": _event(chunk)}}}
    return _described({200: good}, (*_ALWAYS, *_WITH_BODY, *_GENERATING))


def describe(app: FastAPI, *, needs_key: bool) -> dict[str, Any]:
    """Return the description of all routes.

    FastAPI adds a 422 to routes with a body, which never comes: a bad body is a 400 here.

    Args:
        app: The application.
        needs_key: Whether requests must bring an API key.
    """
    schema = FastAPI.openapi(app)
    for path, operations in schema["paths"].items():
        for operation in operations.values():
            operation["responses"].pop("422", None)
            if needs_key and path not in OPEN_PATHS:
                operation["security"] = [{"key": []}]
    components = schema["components"]
    components["schemas"] |= _definitions(CompletionChunk, ChatChunk)
    for unused in ("HTTPValidationError", "ValidationError"):
        components["schemas"].pop(unused, None)
    if needs_key:
        components["securitySchemes"] = {"key": {"type": "http", "scheme": "bearer"}}
    return schema


def _event(chunk: type[Answer]) -> dict[str, Any]:
    """Return the schema of one server-sent event: a chunk, an error, or the end."""
    refs = [{"$ref": _REF.format(model=model.__name__)} for model in (chunk, ErrorBody)]
    parsed = {"contentMediaType": "application/json", "contentSchema": {"anyOf": refs}}
    data = {"anyOf": [{"const": "[DONE]"}, {"type": "string"} | parsed]}
    return {"type": "object", "properties": {"data": data}, "required": ["data"]}


def _definitions(*models: type[Answer]) -> dict[str, Any]:
    """Return the schemas of models that FastAPI does not see, by name."""
    _, schema = models_json_schema([(m, "serialization") for m in models], ref_template=_REF)
    return schema["$defs"]


def _described(good: _Responses, errors: tuple[int, ...]) -> _Responses:
    return good | {status: {"model": ErrorBody} for status in sorted(errors)}
