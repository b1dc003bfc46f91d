"""JSON schemas shipped with the package, and the one function that checks documents against them.

>>> from infopt.schemas import validate
>>> validate(document, "run_record", where="results/runs/batching/a.json")

An unknown key is always an error; the message names it, where it is, and the nearest valid one.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Iterable, Mapping
from importlib import resources
from typing import TYPE_CHECKING, Any, cast

from infopt.errors import InfoptError, ResultError, nearest

if TYPE_CHECKING:
    from jsonschema import Draft202012Validator, ValidationError

_SUFFIX = ".schema.json"


def schema_names() -> list[str]:
    """Return the names of all schemas in the package."""
    files = resources.files(__name__).iterdir()
    return sorted(f.name.removesuffix(_SUFFIX) for f in files if f.name.endswith(_SUFFIX))


def load_schema(name: str) -> dict[str, Any]:
    """Return a fresh copy of a schema.

    Args:
        name: File name without ``.schema.json``.

    Raises:
        ResultError: There is no such schema.
    """
    if name not in schema_names():
        raise ResultError(
            f"There is no schema {name!r}.{nearest(name, schema_names())}",
            field="schema",
            value=name,
            remedy=f"Schemas: {', '.join(schema_names())}.",
        )
    return json.loads(resources.files(__name__).joinpath(name + _SUFFIX).read_text("utf-8"))


def validate(
    document: Any,
    schema: str,
    *,
    where: str,
    error: type[InfoptError] = ResultError,
    remedy: str | None = None,
) -> None:
    """Check plain data against a schema of the package.

    Args:
        document: Plain data (dicts, lists, strings, numbers, booleans, None).
        schema: Name of the schema.
        where: File or object being checked, for the message.
        error: Class to raise.
        remedy: What to do about a mismatch.

    Raises:
        InfoptError: Of the given class; ``field`` is the dotted path of the first mismatch.
    """
    faults = sorted(_validator(schema).iter_errors(document), key=_depth_first)
    if not faults:
        return
    fault = faults[0]
    field, problem = _explain(fault)
    raise error(f"{where}: {problem}", field=field, value=_short(fault.instance), remedy=remedy)


@functools.cache
def _validator(name: str) -> Draft202012Validator:
    from jsonschema import Draft202012Validator

    schema = load_schema(name)
    Draft202012Validator.check_schema(schema)
    return Draft202012Validator(schema)


def _depth_first(fault: ValidationError) -> tuple[bool, list[str]]:
    """Order faults so that an unknown key comes first: it often explains the others."""
    return fault.validator != "additionalProperties", [str(part) for part in fault.absolute_path]


def _explain(fault: ValidationError) -> tuple[str, str]:
    """Return the dotted path of a fault and one sentence about it."""
    path = dotted(fault.absolute_path)
    if fault.validator == "additionalProperties" and isinstance(fault.instance, Mapping):
        valid = fault.schema.get("properties", {}) if isinstance(fault.schema, Mapping) else {}
        key = next(k for k in fault.instance if k not in valid)
        full = f"{path}.{key}" if path else str(key)
        return full, f"unknown key {full!r}.{nearest(key, valid)} Valid: {', '.join(valid)}."
    if fault.validator == "required" and isinstance(fault.instance, Mapping):
        wanted = cast("list[str]", fault.validator_value)
        key = next(k for k in wanted if k not in fault.instance)
        full = f"{path}.{key}" if path else key
        return full, f"{full!r} is missing."
    return path, f"{path or 'the document'}: {_short(fault.message)}"


def dotted(path: Iterable[object]) -> str:
    """Join the parts of a path: ``("latency", "ttft_s", 3)`` is ``latency.ttft_s[3]``."""
    text = ""
    for part in path:
        text += f"[{part}]" if isinstance(part, int) else f".{part}"
    return text.removeprefix(".")


def _short(value: object, limit: int = 200) -> str:
    text = value if isinstance(value, str) else repr(value)
    return text if len(text) <= limit else text[: limit - 3] + "..."
