"""From ``EngineConfig.speculative`` to a drafter."""

from __future__ import annotations

import dataclasses
import importlib
from collections.abc import Mapping
from typing import Any

from infopt.engine.drafting import Drafter
from infopt.errors import ConfigError, check_known_keys
from infopt.registry import Registry

DRAFTERS: Registry[type] = Registry("speculative method")
"""Frozen dataclasses of options by method, each with a ``build()`` that returns the drafter."""

_MODULES = ("infopt.speculative.drafters.ngram", "infopt.speculative.drafters.suffix")
"""Importing them fills the registry."""


def make_drafter(options: Mapping[str, Any] | None) -> Drafter | None:
    """Return the drafter that options ask for; None asks for none.

    Args:
        options: ``method`` and the options of that method.

    Raises:
        ConfigError: Unknown method or option, or a value out of range.
    """
    return None if options is None else read_options(options).build()


def read_options(options: Mapping[str, Any]) -> Any:
    """Return the checked options of a method, defaults filled in.

    Raises:
        ConfigError: As :func:`make_drafter`.
    """
    for module in _MODULES:
        importlib.import_module(module)
    given = dict(options)
    method = given.pop("method", None)
    if not isinstance(method, str):
        raise ConfigError(
            f"speculative needs the name of a method, got {method!r}.",
            field="speculative.method",
            value=method,
            remedy=f"Valid methods: {', '.join(DRAFTERS.names())}.",
        )
    cls = DRAFTERS.get(method)
    check_known_keys(given, [f.name for f in dataclasses.fields(cls)], f"speculative={method}")
    return cls(**given)


def check_count(name: str, value: object, low: int, high: int) -> None:
    """Refuse what is not a whole number in a range.

    Raises:
        ConfigError: Names option, value and range.
    """
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise ConfigError(
            f"speculative: {name} must be a whole number from {low} to {high}, got {value!r}.",
            field=f"speculative.{name}",
            value=value,
        )


MAX_DRAFT_TOKENS = 32
"""Longest draft that may be asked for; more rows than that are no longer one reading of weights."""
