"""OpenAI's ``response_format``, as plain data."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from infopt.errors import check_known_keys, nearest
from infopt.sampling_params import SamplingParams, StructuredOutputsParams
from infopt.structured.spec import StructuredOutputError

_TYPES = ("text", "json_object", "json_schema")


def with_response_format(params: SamplingParams, form: Mapping[str, Any]) -> SamplingParams:
    """Return sampling parameters that ask for a form.

    Args:
        params: What else is asked for.
        form: ``{"type": "text"}``, ``{"type": "json_object"}``, or ``{"type": "json_schema",
            "json_schema": {"name": ..., "schema": {...}}}``.

    Raises:
        StructuredOutputError: If the type is unknown, its schema missing or too much, or another
            form is asked for already.
        ConfigError: For an unknown key.
    """
    read = _read(form)
    if read is not None and params.structured_outputs is not None:
        raise StructuredOutputError(
            "response_format and structured_outputs cannot be combined.",
            field="response_format",
            remedy="Give one of them.",
        )
    return params if read is None else params.replace(structured_outputs=read)


def _read(form: Mapping[str, Any]) -> StructuredOutputsParams | None:
    if not isinstance(form, Mapping):
        raise StructuredOutputError(
            f"response_format must be a mapping, got {form!r}.", field="response_format", value=form
        )
    check_known_keys(form, ("type", "json_schema"), "response_format")
    kind = form.get("type")
    if kind not in _TYPES:
        raise StructuredOutputError(
            f"response_format has the type {kind!r}.{nearest(str(kind), _TYPES)}",
            field="response_format.type",
            value=kind,
            remedy=f"Types: {', '.join(_TYPES)}.",
        )
    schema = _schema_of(form.get("json_schema"))
    if (schema is None) == (kind == "json_schema"):
        raise StructuredOutputError(
            f"response_format of type {kind!r} "
            f"{'needs a' if schema is None else 'has a'} json_schema.schema.",
            field="response_format.json_schema",
        )
    if schema is not None:
        return StructuredOutputsParams(json=schema)
    return StructuredOutputsParams(json_object=True) if kind == "json_object" else None


def _schema_of(named: Any) -> Any:
    if named is None:
        return None
    if not isinstance(named, Mapping):
        raise StructuredOutputError(
            f"json_schema must be a mapping, got {named!r}.", field="response_format.json_schema"
        )
    known = ("name", "description", "schema", "strict")
    check_known_keys(named, known, "response_format.json_schema")
    return named.get("schema")
