"""From ``EngineConfig.speculative`` to a drafter."""

from __future__ import annotations

import dataclasses
import importlib
from collections.abc import Mapping, Sequence
from typing import Any

from infopt.engine.clock import Clock
from infopt.engine.draft_control import DraftControl
from infopt.engine.drafting import Drafter, DraftTarget
from infopt.errors import ConfigError, check_known_keys, nearest
from infopt.registry import Registry

DRAFTERS: Registry[type] = Registry("speculative method")
"""Frozen dataclasses of options by method, each with a ``build(target)`` that returns the drafter;
``target`` (`infopt.engine.drafting.DraftTarget`) is None where no model is loaded."""

_MODULES = (
    "infopt.speculative.drafters.ngram",
    "infopt.speculative.drafters.suffix",
    "infopt.speculative.drafters.draft_model",
    "infopt.speculative.drafters.draft_head",
    "infopt.speculative.drafters.early_exit",
    "infopt.speculative.auto",
)
"""Importing them fills the registry."""


def make_drafter(
    options: Mapping[str, Any] | None, target: DraftTarget | None = None
) -> Drafter | None:
    """Return the drafter that options ask for; None asks for none.

    Args:
        options: ``method`` and the options of that method.
        target: The model that is guessed for; methods that look in the text alone need none.

    Raises:
        ConfigError: Unknown method or option, or a value out of range.
    """
    return None if options is None else read_options(options).build(target)


def make_control(options: Mapping[str, Any] | None, clock: Clock) -> DraftControl:
    """Return what decides how many tokens are guessed; most methods leave it to the drafter.

    Args:
        options: As for :func:`make_drafter`.
        clock: The engine's.
    """
    found = None if options is None else read_options(options)
    make = getattr(found, "make_control", DraftControl)
    return make(clock)


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


def check_text(name: str, value: object, remedy: str) -> None:
    """Refuse what is not a text with something in it.

    Raises:
        ConfigError: Names option and value.
    """
    if not isinstance(value, str) or not value:
        raise ConfigError(
            f"speculative: {name} must be a non-empty string, got {value!r}.",
            field=f"speculative.{name}",
            value=value,
            remedy=remedy,
        )


def check_choice(name: str, value: object, choices: Sequence[str]) -> None:
    """Refuse what is none of some words.

    Raises:
        ConfigError: Names option, value and choices.
    """
    if value not in choices:
        raise ConfigError(
            f"speculative: {name}={value!r} is not a choice.{nearest(str(value), choices)}",
            field=f"speculative.{name}",
            value=value,
            remedy=f"Choose one of: {', '.join(choices)}.",
        )


def need_target(method: str, target: DraftTarget | None) -> DraftTarget:
    """Return the target of a method that computes with a model.

    Raises:
        ConfigError: There is none.
    """
    if target is None:
        raise ConfigError(
            f"speculative: {method} guesses for a model that runs natively, and there is none.",
            field="speculative.method",
            value=method,
            remedy="ngram and suffix guess from any text.",
        )
    return target


ACCEPTANCE = ("ratio", "equal")
"""How drawn guesses are judged: with probability min(1, p / q), or drawn with the random number of
the token in their place and kept if equal, which keeps fewer, and samples those of their seeds."""

MAX_DRAFT_TOKENS = 32
"""Longest draft that may be asked for; more rows than that are no longer one reading of weights."""
