"""Calls registered functions with options from a configuration; unknown options are errors."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from infopt.errors import WorkloadError, check_known_keys
from infopt.registry import Registry

T = TypeVar("T")


def call_with_options(
    registry: Registry[Callable[..., T]], spec: str | Mapping[str, Any], *args: Any
) -> T:
    """Call the function that ``spec["kind"]`` names with the other entries as options.

    The options a function understands are its keyword-only parameters, so that signature,
    documentation and check cannot disagree.

    Args:
        registry: Where the kind is registered.
        spec: A bare kind, or ``{"kind": ..., **options}``.
        *args: Positional arguments that do not come from the configuration.

    Raises:
        ConfigError: Unknown kind or option.
        WorkloadError: ``kind`` or a required option is missing.
    """
    if isinstance(spec, str):
        spec = {"kind": spec}
    if not isinstance(spec, Mapping) or "kind" not in spec:
        raise WorkloadError(
            f"A {registry.kind} needs a kind, got {spec!r}.",
            field="kind",
            value=spec,
            remedy=f"Choose one of: {', '.join(registry.names())}.",
        )
    function = registry.get(spec["kind"])
    options = {key: value for key, value in spec.items() if key != "kind"}
    where = f"{registry.kind} {spec['kind']!r}"
    known = option_names(function)
    check_known_keys(options, known, where)
    missing = [name for name, is_required in known.items() if is_required and name not in options]
    if missing:
        raise WorkloadError(f"The {where} needs {missing[0]!r}.", field=missing[0])
    return function(*args, **options)


def option_names(function: Callable[..., Any]) -> dict[str, bool]:
    """Return the options of a registered function and whether each is required."""
    parameters = inspect.signature(function).parameters.values()
    return {
        p.name: p.default is inspect.Parameter.empty
        for p in parameters
        if p.kind is inspect.Parameter.KEYWORD_ONLY
    }


def check_count(name: str, value: object, minimum: int = 1) -> int:
    """Return ``value`` if it is a whole number of at least ``minimum``.

    Raises:
        WorkloadError: Otherwise.
    """
    if isinstance(value, bool) or not isinstance(value, int) or value < minimum:
        raise WorkloadError(
            f"{name} must be a whole number >= {minimum}, got {value!r}.", field=name, value=value
        )
    return value


def check_positive(name: str, value: object) -> float:
    """Return ``value`` as a float if it is a positive finite number.

    Raises:
        WorkloadError: Otherwise.
    """
    if isinstance(value, int | float) and not isinstance(value, bool):
        number = float(value)
        if math.isfinite(number) and number > 0:
            return number
    raise WorkloadError(
        f"{name} must be a positive number, got {value!r}.", field=name, value=value
    )
