from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from infopt.errors import ConfigError, ResultError
from infopt.schemas import dotted, load_schema, schema_names, validate

FREE = {"config", "workload", "hardware"}
"""Objects whose keys another module checks (EngineConfig, workload registry) or that are facts."""


def subschemas(schema: Any, path: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield every schema of a value, by dotted path."""
    if not isinstance(schema, dict):
        return
    yield path, schema
    for keyword in ("properties", "$defs"):
        for name, sub in schema.get(keyword, {}).items():
            yield from subschemas(sub, f"{path}.{name}")
    for keyword in ("items", "additionalProperties"):
        if isinstance(schema.get(keyword), dict):
            yield from subschemas(schema[keyword], f"{path}.*")


OWN = ["recommendation", "run_record"]


@pytest.mark.parametrize("name", OWN)
def test_every_key_is_described_and_no_other_is_allowed(name: str) -> None:
    for path, schema in subschemas(load_schema(name)):
        assert schema.get("description", "").strip(), f"{name}{path} has no description"
        kinds = schema.get("type", [])
        if "object" in kinds and path.rsplit(".", 1)[-1] not in FREE:
            closed = schema.get("additionalProperties") is False
            typed = isinstance(schema.get("additionalProperties"), dict)
            assert closed or (typed and "propertyNames" in schema), f"{name}{path} is open"


def test_schemas_are_listed_and_unknown_ones_refused() -> None:
    assert set(OWN) <= set(schema_names())
    with pytest.raises(ResultError, match="Did you mean 'run_record'"):
        load_schema("run_records")


def test_an_unknown_key_explains_itself_before_what_follows_from_it() -> None:
    """A misspelt key is also a missing one: the message must name the misspelling."""
    document = {"schema_version": 1, "identities": {}}
    with pytest.raises(ConfigError, match=r"identities.*Did you mean 'identity'") as caught:
        validate(document, "run_record", where="x.json", error=ConfigError, remedy="Fix it.")
    assert caught.value.field == "identities"
    assert "x.json" in str(caught.value) and caught.value.remedy == "Fix it."


def test_a_missing_key_is_named() -> None:
    with pytest.raises(ResultError, match="'identity' is missing"):
        validate({"schema_version": 1}, "run_record", where="x.json")


def test_paths_are_dotted() -> None:
    assert dotted(["samples", "ttft_s", 3]) == "samples.ttft_s[3]"
    assert dotted([]) == ""
