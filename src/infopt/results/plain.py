"""Turns what a measurement holds into plain JSON data, and refuses what JSON cannot hold."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

from infopt.errors import ResultError


def to_plain(value: object, where: str = "") -> Any:
    """Return ``value`` as dicts, lists, strings, numbers, booleans and None.

    Dataclasses become dicts, tuples lists, and numpy or torch scalars numbers.

    Args:
        value: What to convert.
        where: Dotted name of the value, for messages.

    Raises:
        ResultError: A NaN, an infinity or a type that has no plain form; ``field`` names it.
    """
    if value is None or isinstance(value, str | bool):
        return value
    if isinstance(value, int | float):
        return _finite(value, where)
    if isinstance(value, Mapping):
        return {_key(k, where): to_plain(v, _join(where, k)) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [to_plain(v, f"{where}[{i}]") for i, v in enumerate(value)]
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        names = [f.name for f in dataclasses.fields(value)]
        return {name: to_plain(getattr(value, name), _join(where, name)) for name in names}
    return _from_scalar(value, where)


def _from_scalar(value: object, where: str) -> Any:
    """Unpack a numpy or torch scalar (anything with ``item()`` and no dimensions)."""
    item = getattr(value, "item", None)
    if callable(item) and getattr(value, "ndim", None) == 0:
        return to_plain(item(), where)
    raise ResultError(
        f"{where or 'value'} is a {type(value).__name__}, which a JSON record cannot hold.",
        field=where,
        value=str(value)[:200],
        remedy="Convert it to numbers, strings, lists or dicts first.",
    )


def _finite(value: float, where: str) -> float:
    if math.isfinite(value):
        # Subclasses (numpy.float64, IntEnum) become the plain type.
        return int(value) if isinstance(value, int) else float(value)
    raise ResultError(
        f"{where or 'value'} is {value}, which is not a measurement.",
        field=where,
        value=value,
        remedy="Record None, and the reason, where a number could not be measured.",
    )


def _key(key: object, where: str) -> str:
    if isinstance(key, str):
        return key
    raise ResultError(
        f"{where or 'value'} has the key {key!r}; keys must be strings.", field=where, value=key
    )


def _join(where: str, key: object) -> str:
    return f"{where}.{key}" if where else str(key)
