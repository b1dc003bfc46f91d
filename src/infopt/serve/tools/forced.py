"""Constraints for ``tool_choice`` required and named: the output can be nothing but calls."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from infopt.structured import StructuredSpec

_ANY_OBJECT = {"type": "object"}


def named_call(parameters: Mapping[str, Any] | None) -> StructuredSpec:
    """Return the form of the arguments of one function, which are all of the output."""
    return StructuredSpec.json_schema(dict(parameters or _ANY_OBJECT))


def any_calls(
    functions: Sequence[tuple[str, Mapping[str, Any] | None]], *, parallel: bool
) -> StructuredSpec:
    """Return the form of a list of at least one call.

    Args:
        functions: Name and schema of the arguments of each.
        parallel: Whether there may be more than one call.
    """
    definitions = {name: _moved(schema or _ANY_OBJECT, name) for name, schema in functions}
    schema = {
        "$defs": definitions,
        "type": "array",
        "minItems": 1,
        "items": {"anyOf": [_call(name) for name, _ in functions]},
    }
    return StructuredSpec.json_schema(schema | ({} if parallel else {"maxItems": 1}))


def _call(name: str) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": {"name": {"const": name}, "arguments": {"$ref": f"#/$defs/{name}"}},
        "required": ["name", "arguments"],
        "additionalProperties": False,
    }


def _moved(schema: Any, name: str) -> Any:
    """Return a schema whose references work below ``#/$defs/{name}``."""
    if isinstance(schema, list):
        return [_moved(item, name) for item in schema]
    if not isinstance(schema, Mapping):
        return schema
    return {
        key: f"#/$defs/{name}{value[1:]}"
        if key == "$ref" and isinstance(value, str) and value.startswith("#")
        else _moved(value, name)
        for key, value in schema.items()
    }
