"""Refuses schemas with keywords that would not be enforced, naming keyword and path.

The compiler ignores words it does not know, as JSON Schema allows. Here a word is enforced, known
to carry no constraint, or an error.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from infopt.errors import nearest
from infopt.structured.spec import StructuredOutputError

ENFORCED = frozenset(
    (
        *("$ref", "$defs", "definitions", "type", "enum", "const", "anyOf", "oneOf", "allOf"),
        *("properties", "required", "additionalProperties", "patternProperties"),
        *("minProperties", "maxProperties", "items", "prefixItems", "minItems", "maxItems"),
        *("minLength", "maxLength", "pattern", "format", "multipleOf"),
        *("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"),
    )
)
"""Keywords that the output obeys."""

NOT_ENFORCED = frozenset(
    (
        *("not", "if", "then", "else", "contains", "minContains", "maxContains", "uniqueItems"),
        *("additionalItems", "unevaluatedItems", "unevaluatedProperties", "propertyNames"),
        *("dependentRequired", "dependentSchemas", "dependencies", "$dynamicRef"),
    )
)
"""Keywords of JSON Schema that are refused."""

ANNOTATIONS = frozenset(
    (
        *("$schema", "$id", "$comment", "$anchor", "title", "description", "default"),
        *("examples", "example", "deprecated", "readOnly", "writeOnly", "discriminator"),
    )
)
"""Keywords that say nothing about the form of the output."""

_SCHEMA_MAPS = ("$defs", "definitions", "properties", "patternProperties")
_SCHEMA_LISTS = ("anyOf", "oneOf", "allOf", "prefixItems")
_SCHEMAS = ("items", "additionalProperties")


def check_keywords(schema: Any, path: str = "") -> None:
    """Check a schema and all schemas inside it.

    Args:
        schema: The schema.
        path: Where it is, as ``properties.o.items``.

    Raises:
        StructuredOutputError: Names the first keyword that is not supported, and its path.
    """
    if isinstance(schema, bool):
        return
    if not isinstance(schema, dict):
        raise StructuredOutputError(
            f"the schema at {path or 'the top'} must be an object, got {schema!r:.60}.",
            field=path or None,
            value=schema,
        )
    for keyword in schema:
        if keyword not in ENFORCED and keyword not in ANNOTATIONS:
            where = f"{path}.{keyword}" if path else keyword
            raise StructuredOutputError(
                f"the keyword {keyword!r} at {where} is not supported.{nearest(keyword, ENFORCED)}",
                field=where,
                value=keyword,
            )
    for place, inner in children(schema):
        check_keywords(inner, f"{path}.{place}" if path else place)


def children(schema: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield the schemas directly inside a schema, with their places."""
    for keyword in _SCHEMA_MAPS:
        inner = schema.get(keyword)
        for name, item in inner.items() if isinstance(inner, dict) else ():
            yield f"{keyword}.{name}", item
    for keyword in _SCHEMA_LISTS:
        inner = schema.get(keyword)
        for index, item in enumerate(inner) if isinstance(inner, list) else ():
            yield f"{keyword}.{index}", item
    for keyword in _SCHEMAS:
        if keyword in schema:
            yield keyword, schema[keyword]
