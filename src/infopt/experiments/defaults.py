"""Completes a document with the defaults of its JSON schema.

Rules, in the order they act on each value:

* absent: the default;
* a mapping where the default is one: merged key by key; with ``x-merge: listed`` only the entries
  that the user lists stay, each merged with the default entry of its name; with
  ``x-merge: replace`` nothing of the default stays;
* anything else: what the user wrote.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

_ABSENT = object()


def complete(schema: Mapping[str, Any], document: Mapping[str, Any]) -> dict[str, Any]:
    """Return ``document`` with all defaults of ``schema``; the arguments are left alone."""
    return _complete(schema, schema, copy.deepcopy(dict(document)))


def resolve(schema: Mapping[str, Any], node: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a schema node with its ``$ref`` replaced by what it points at."""
    if "$ref" not in node:
        return node
    target: Any = schema
    for part in node["$ref"].removeprefix("#/").split("/"):
        target = target[part]
    return {**target, **{k: v for k, v in node.items() if k != "$ref"}}


def _complete(schema: Mapping[str, Any], node: Mapping[str, Any], value: Any) -> Any:
    node = resolve(schema, node)
    value = _with_default(node, value)
    if isinstance(value, dict):
        return _complete_mapping(schema, node, value)
    if isinstance(value, list) and "items" in node:
        return [_complete(schema, node["items"], item) for item in value]
    return value


def _with_default(node: Mapping[str, Any], value: Any) -> Any:
    if "default" not in node:
        return value
    default = copy.deepcopy(node["default"])
    if value is _ABSENT:
        return default
    if isinstance(value, dict) and isinstance(default, dict):
        return _merge(node, default, value)
    return value


def _merge(node: Mapping[str, Any], default: dict[str, Any], value: dict[str, Any]) -> Any:
    how = node.get("x-merge")
    if how == "replace":
        return value
    entry = node.get("additionalProperties")
    entry_node = entry if isinstance(entry, Mapping) else {}
    merged = {} if how == "listed" else dict(default)
    for key, item in value.items():
        old = default.get(key)
        both = isinstance(item, dict) and isinstance(old, dict)
        merged[key] = _merge(entry_node, old or {}, item) if both else item
    return merged


def _complete_mapping(
    schema: Mapping[str, Any], node: Mapping[str, Any], value: dict[str, Any]
) -> dict[str, Any]:
    properties = node.get("properties", {})
    entry = node.get("additionalProperties")
    for key, child in properties.items():
        item = _complete(schema, child, value.get(key, _ABSENT))
        if item is not _ABSENT:
            value[key] = item
    if isinstance(entry, Mapping):
        extra = value.keys() - properties.keys()
        value |= {key: _complete(schema, entry, value[key]) for key in sorted(extra)}
    return value
