"""What a slice of the stage `kv_cache` can measure beside its load, as checked options."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, TypeVar

from infopt.errors import ConfigError, check_known_keys

LONG_TEXT, CAPACITY, CURVE, SHARING = "long_text", "capacity", "context_curve", "sharing"
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class CapacityOptions:
    """Count the sequences that the pool holds at once.

    Attributes:
        context_tokens: Length of each prompt.
    """

    context_tokens: int

    def __post_init__(self) -> None:
        """Check the length."""
        _check_count("capacity.context_tokens", self.context_tokens)


@dataclass(frozen=True, slots=True)
class CurveOptions:
    """Time decode steps over the length of the context.

    Attributes:
        num_seqs: Sequences of a step.
        contexts: Tokens of each that are in the cache, rising.
        budget_s: Seconds per candidate.
    """

    num_seqs: int
    contexts: tuple[int, ...]
    budget_s: float

    def __post_init__(self) -> None:
        """Check the values.

        Raises:
            ConfigError: Names option and value.
        """
        _check_count("context_curve.num_seqs", self.num_seqs)
        contexts = tuple(self.contexts)
        object.__setattr__(self, "contexts", contexts)
        for context in contexts:
            _check_count("context_curve.contexts", context)
        if len(contexts) < 2 or list(contexts) != sorted(set(contexts)):
            raise ConfigError(
                f"context_curve.contexts must be at least two rising lengths, got {contexts}.",
                field="context_curve.contexts",
                value=contexts,
            )
        if not self.budget_s > 0:
            raise ConfigError(
                f"context_curve.budget_s must be above 0, got {self.budget_s!r}.",
                field="context_curve.budget_s",
                value=self.budget_s,
            )


def read_options(kind: type[T], options: Mapping[str, Any], where: str) -> T:
    """Return options as their dataclass.

    Raises:
        ConfigError: An unknown or missing key, or an impossible value.
    """
    known = [field.name for field in fields(kind)]  # type: ignore[arg-type]
    check_known_keys(options, known, where)
    try:
        return kind(**options)
    except TypeError as error:
        missing = next(name for name in known if name not in options)
        raise ConfigError(f"{where} needs {missing!r}.", field=f"{where}.{missing}") from error


def check_measures(entry: Mapping[str, Any]) -> None:
    """Check what a slice is to measure beside its load.

    Raises:
        ConfigError: Names option and value.
    """
    from infopt.evals.long_text import LongText

    if entry[LONG_TEXT] is not None:
        LongText.from_dict(entry[LONG_TEXT])
    if entry[CAPACITY] is not None:
        read_options(CapacityOptions, entry[CAPACITY], CAPACITY)
    if entry[CURVE] is not None:
        read_options(CurveOptions, entry[CURVE], CURVE)


def _check_count(name: str, value: object) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ConfigError(
            f"{name} must be a whole number >= 1, got {value!r}.", field=name, value=value
        )
