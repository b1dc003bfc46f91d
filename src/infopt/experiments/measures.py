"""What a slice of `kv_cache` or `moe` can measure beside its load, as checked options."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, TypeVar

from infopt.bench.random_checkpoint import RandomShape
from infopt.errors import ConfigError, check_known_keys

LONG_TEXT, CAPACITY, CURVE, SHARING = "long_text", "capacity", "context_curve", "sharing"
BATCH_CURVE, RANDOM_MODELS, EXPERT_LOAD = "batch_curve", "random_models", "expert_load"
ROUTING = "routing"
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
        object.__setattr__(
            self, "contexts", _rising("context_curve.contexts", self.contexts, at_least=2)
        )
        if not self.budget_s > 0:
            raise ConfigError(
                f"context_curve.budget_s must be above 0, got {self.budget_s!r}.",
                field="context_curve.budget_s",
                value=self.budget_s,
            )


@dataclass(frozen=True, slots=True)
class BatchOptions:
    """Compare decode steps with the reference's, by sequences of the step.

    Attributes:
        batches: Sequences, rising.
        prompt_tokens: Tokens of each prompt.
        output_tokens: Tokens of each answer.
        repeats: Pairs.
    """

    batches: tuple[int, ...]
    prompt_tokens: int
    output_tokens: int
    repeats: int

    def __post_init__(self) -> None:
        """Check the values.

        Raises:
            ConfigError: Names option and value.
        """
        batches = _checked_batches(self, BATCH_CURVE, "prompt_tokens", "output_tokens", "repeats")
        object.__setattr__(self, "batches", batches)


@dataclass(frozen=True, slots=True)
class LoadOptions:
    """Count which experts serve the tokens of documentation and of code.

    Attributes:
        prompt_tokens: Tokens of each prompt.
        output_tokens: Tokens of each answer.
        batches: Sequences at once, rising; each is a run.
    """

    prompt_tokens: int
    output_tokens: int
    batches: tuple[int, ...]

    def __post_init__(self) -> None:
        """Check the values.

        Raises:
            ConfigError: Names option and value.
        """
        batches = _checked_batches(self, EXPERT_LOAD, "prompt_tokens", "output_tokens")
        object.__setattr__(self, "batches", batches)


@dataclass(frozen=True, slots=True)
class RoutingOptions:
    """Let candidate and reference answer the same prompts, and learn which goes where.

    Attributes:
        items: Number of items by task.
        policies: Kinds to train, in the order in which they are shown.
        test_share: Share of the items that judges them.
    """

    items: Mapping[str, int]
    policies: tuple[str, ...]
    test_share: float

    def __post_init__(self) -> None:
        """Check the values.

        Raises:
            ConfigError: Names option and value.
        """
        if not isinstance(self.items, Mapping) or not self.items:
            raise ConfigError(
                f"{ROUTING}.items must be numbers of items by task, got {self.items!r}.",
                field=f"{ROUTING}.items",
                value=self.items,
            )
        for name, count in self.items.items():
            _check_count(f"{ROUTING}.items.{name}", count)
        object.__setattr__(self, "policies", tuple(self.policies))
        if not self.policies:
            raise ConfigError(f"{ROUTING}.policies is empty.", field=f"{ROUTING}.policies")
        is_number = isinstance(self.test_share, float)
        if not is_number or not 0 < self.test_share < 1:
            raise ConfigError(
                f"{ROUTING}.test_share must be between 0 and 1, got {self.test_share!r}.",
                field=f"{ROUTING}.test_share",
                value=self.test_share,
            )


def read_shapes(options: Mapping[str, Any], slugs: Sequence[str]) -> dict[str, RandomShape]:
    """Return the random models of a slice by candidate.

    Raises:
        ConfigError: A candidate has none, one belongs to no candidate, or a size is impossible.
    """
    check_known_keys(options, slugs, RANDOM_MODELS)
    for slug in slugs:
        if slug not in options:
            raise ConfigError(
                f"{RANDOM_MODELS} has no model for the candidate {slug!r}.",
                field=f"{RANDOM_MODELS}.{slug}",
                remedy="Describe one per candidate, or none.",
            )
    return {
        slug: read_options(RandomShape, options[slug], f"{RANDOM_MODELS}.{slug}") for slug in slugs
    }


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
    from infopt.evals.tasks import TASKS
    from infopt.select.routing import TRAINERS

    if entry[LONG_TEXT] is not None:
        LongText.from_dict(entry[LONG_TEXT])
    if entry[CAPACITY] is not None:
        read_options(CapacityOptions, entry[CAPACITY], CAPACITY)
    if entry[CURVE] is not None:
        read_options(CurveOptions, entry[CURVE], CURVE)
    if entry[BATCH_CURVE] is not None:
        read_options(BatchOptions, entry[BATCH_CURVE], BATCH_CURVE)
    if entry[EXPERT_LOAD] is not None:
        read_options(LoadOptions, entry[EXPERT_LOAD], EXPERT_LOAD)
    if entry[ROUTING] is not None:
        options = read_options(RoutingOptions, entry[ROUTING], ROUTING)
        for task in options.items:
            TASKS.get(task)
        for kind in options.policies:
            TRAINERS.get(kind)
    if entry[RANDOM_MODELS] is not None:
        read_shapes(entry[RANDOM_MODELS], [c["slug"] for c in entry["candidates"]])


def _checked_batches(
    options: BatchOptions | LoadOptions, where: str, *counts: str
) -> tuple[int, ...]:
    """Check the counts of options, and return their batches as a tuple.

    Raises:
        ConfigError: Names option and value.
    """
    for name in counts:
        _check_count(f"{where}.{name}", getattr(options, name))
    return _rising(f"{where}.batches", options.batches, at_least=1)


def _rising(name: str, values: Sequence[int], *, at_least: int) -> tuple[int, ...]:
    """Return whole numbers that rise.

    Raises:
        ConfigError: There are fewer, or they do not.
    """
    for value in values if isinstance(values, list | tuple) else [values]:
        _check_count(name, value)
    if (
        not isinstance(values, list | tuple)
        or len(values) < at_least
        or list(values) != sorted(set(values))
    ):
        many = "two rising numbers" if at_least == 2 else "one number, rising"
        raise ConfigError(
            f"{name} must be at least {many}, got {values!r}.", field=name, value=values
        )
    return tuple(values)


def _check_count(name: str, value: object) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ConfigError(
            f"{name} must be a whole number >= 1, got {value!r}.", field=name, value=value
        )
