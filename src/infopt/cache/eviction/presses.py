"""Presses that look at positions, keys or chance alone, and the one that shares budgets out."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch

from infopt.cache.eviction.press import PRESSES, LayerRows, Press, check_count
from infopt.errors import ConfigError, check_known_keys

_ALWAYS = float("inf")


@PRESSES.register("streaming")
@dataclass(frozen=True)
class Streaming(Press):
    """StreamingLLM (arXiv 2309.17453): the first tokens, which soak up attention, and the newest.

    Attributes:
        sinks: First tokens that stay.
        positions: ``true``: tokens keep their positions. ``relative``, as in the paper: positions
            count within the cache, so that an output may go on beyond the length the model was
            trained for.
    """

    needs: ClassVar[frozenset[str]] = frozenset()
    query_aware: ClassVar[bool] = False
    decodes: ClassVar[bool] = True

    sinks: int = 4
    positions: str = "true"

    def __post_init__(self) -> None:
        """Check options.

        Raises:
            ConfigError: Names option and value.
        """
        check_count("sinks", self.sinks, 0)
        if self.positions not in ("true", "relative"):
            raise ConfigError(
                f"kv_eviction: positions must be 'true' or 'relative', got {self.positions!r}.",
                field="kv_eviction.positions",
                value=self.positions,
            )

    @property
    def is_relative(self) -> bool:
        """Whether positions count within the cache."""
        return self.positions == "relative"

    @property
    def min_rows(self) -> int:
        """Sinks and the newest token."""
        return self.sinks + 1

    def score(self, rows: LayerRows) -> torch.Tensor:
        """The newer the better."""
        scores = rows.positions.float()
        return scores.masked_fill(rows.positions < self.sinks, _ALWAYS)


@PRESSES.register("knorm")
@dataclass(frozen=True)
class Knorm(Press):
    """Small keys get much attention (arXiv 2406.11430): score = -|key|."""

    needs: ClassVar[frozenset[str]] = frozenset({"keys"})
    query_aware: ClassVar[bool] = False

    def score(self, rows: LayerRows) -> torch.Tensor:
        """The shorter the better."""
        return -rows.keys.norm(dim=-1)


@PRESSES.register("random")
@dataclass(frozen=True)
class Random(Press):
    """Chance: the floor for everything else.

    Attributes:
        seed: Of the draw; layers and lengths differ, requests of equal length do not.
    """

    needs: ClassVar[frozenset[str]] = frozenset()
    query_aware: ClassVar[bool] = False

    seed: int = 0

    def __post_init__(self) -> None:
        """Check options.

        Raises:
            ConfigError: Names option and value.
        """
        check_count("seed", self.seed, 0)

    def score(self, rows: LayerRows) -> torch.Tensor:
        """Uniform."""
        generator = torch.Generator()
        generator.manual_seed((self.seed * 1_000_003 + rows.layer) * 1_000_003 + rows.num_rows)
        drawn = torch.rand((rows.num_kv_heads, rows.num_rows), generator=generator)
        return drawn.to(rows.keys.device)


@PRESSES.register("pyramid")
@dataclass(frozen=True)
class Pyramid(Press):
    """PyramidKV (arXiv 2406.02069): budgets fall linearly from the first layers to the last.

    The mean over the layers is the budget asked for; the last layers get ``1 / steepness`` of it.
    Layers with different budgets need KV groups of their own, so the engine must be started with
    this method.

    Attributes:
        base: Method that scores.
        base_options: Its options.
        steepness: Mean budget over the last group's.
        steps: Groups of layers to form (fewer where the layers do not divide).
    """

    needs: ClassVar[frozenset[str]] = frozenset({"keys", "values", "queries", "attention"})
    query_aware: ClassVar[bool] = True

    base: str = "snapkv"
    base_options: Mapping[str, Any] = field(default_factory=dict)
    steepness: float = 20.0
    steps: int = 5

    def __post_init__(self) -> None:
        """Check options.

        Raises:
            ConfigError: Names option and value.
        """
        check_count("steps", self.steps, 2)
        is_number = isinstance(self.steepness, int | float) and not isinstance(self.steepness, bool)
        if not is_number or not 1 <= self.steepness <= 1000:
            raise ConfigError(
                f"kv_eviction: steepness must be a number from 1 to 1000, got {self.steepness!r}.",
                field="kv_eviction.steepness",
                value=self.steepness,
            )
        if self.base == "pyramid" or not isinstance(self.base, str):
            raise ConfigError(
                f"kv_eviction: pyramid cannot rest on {self.base!r}.",
                field="kv_eviction.base",
                value=self.base,
            )
        if not isinstance(self.base_options, Mapping):
            raise ConfigError(
                f"kv_eviction: base_options must be a mapping, got {self.base_options!r}.",
                field="kv_eviction.base_options",
                value=self.base_options,
            )
        object.__setattr__(self, "_press", make_press(self.base, self.base_options))

    @property
    def press(self) -> Press:
        """What scores."""
        return self._press  # type: ignore[attr-defined]

    @property
    def accumulates(self) -> bool:  # type: ignore[override]
        """As the base."""
        return self.press.accumulates

    @property
    def query_window(self) -> int:
        """As the base."""
        return self.press.query_window

    @property
    def min_rows(self) -> int:
        """As the base."""
        return self.press.min_rows

    @property
    def num_future(self) -> int:
        """As the base."""
        return self.press.num_future

    @property
    def layer_steps(self) -> int:
        """Groups of layers."""
        return self.steps

    def budgets(self, mean: int, num_rows: int, num_groups: int) -> Sequence[int]:
        """Fall linearly, with the mean kept where a budget would exceed the rows there are."""
        last = max(mean / self.steepness, 2 * mean - num_rows)
        first = 2 * mean - last
        step = (first - last) / max(num_groups - 1, 1)
        ends = [round((i + 1) * first - step * i * (i + 1) / 2) for i in range(num_groups)]
        return [end - start for start, end in zip([0, *ends], ends, strict=False)]

    def score(self, rows: LayerRows) -> torch.Tensor:
        """Return the base's scores."""
        return self.press.score(rows)


def make_press(method: str, options: Mapping[str, Any]) -> Press:
    """Return a press with its options.

    Raises:
        ConfigError: Unknown method or option, or a value out of range.
    """
    check_known_keys(options, option_names(method), f"kv_eviction={method}")
    return PRESSES.get(method)(**options)


def option_names(method: str) -> list[str]:
    """Return the names of a method's own options.

    Raises:
        ConfigError: There is no such method.
    """
    cls: Any = PRESSES.get(method)
    return [option.name for option in dataclasses.fields(cls)]
