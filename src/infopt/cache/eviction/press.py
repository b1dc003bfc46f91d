"""What a press is, and what it is shown of a layer."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

import torch

from infopt.cache.eviction.attention import attention_weights
from infopt.errors import ConfigError
from infopt.registry import Registry


@dataclass(frozen=True)
class LayerRows:
    """One layer of one sequence: ``num_rows`` kept tokens, oldest first. All numbers are float32.

    Attributes:
        layer: Index of the layer in the model.
        num_kept: Rows that will stay.
        keys: ``(num_kv_heads, num_rows, head_dim)``, rotated to the tokens' true positions.
        values: Same shape.
        positions: int64 ``(num_kv_heads, num_rows)``: true position of each row's token.
        queries: ``(num_heads, num_queries, head_dim)``, rotated: those of the newest tokens, oldest
            first; as many as the press's ``query_window`` asks for, or fewer where fewer exist.
        query_rows: int64 ``(num_queries,)``: the row of each query's own token. It saw the rows up
            to that one.
        query_positions: int64 ``(num_queries,)``: true positions of the queries.
        attention: ``(num_kv_heads, num_rows)``: mean attention that each row got from the queries
            that saw it, for presses that accumulate; else None.
        scale: Factor of attention scores.
        softcap: Bound of attention scores, or None.
        next_position: Position of the next token.
        cos: ``(positions, head_dim / 2)`` of the rotary table; empty unless ``num_future`` is set.
        sin: Same shape.
    """

    layer: int
    num_kept: int
    keys: torch.Tensor
    values: torch.Tensor
    positions: torch.Tensor
    queries: torch.Tensor
    query_rows: torch.Tensor
    query_positions: torch.Tensor
    attention: torch.Tensor | None
    scale: float
    softcap: float | None
    next_position: int
    cos: torch.Tensor
    sin: torch.Tensor

    @property
    def num_rows(self) -> int:
        """Rows to choose from."""
        return self.keys.shape[1]

    @property
    def num_kv_heads(self) -> int:
        """Key heads."""
        return self.keys.shape[0]

    @cached_property
    def weights(self) -> torch.Tensor:
        """Attention of the queries, ``(num_heads, num_queries, num_rows)``; rows sum to 1."""
        return attention_weights(self.queries, self.query_rows, self.keys, self.scale, self.softcap)


class Press(ABC):
    """Scores rows; its fields are its options.

    Attributes:
        needs: What it reads: any of ``keys``, ``values``, ``queries``, ``attention``.
        query_aware: Whether scores depend on the newest tokens, so that what is kept suits the
            question at the end of this prompt and may not suit another one.
        decodes: Whether it can go on evicting while tokens are generated.
        accumulates: Whether it reads the attention of all queries, not of the newest ones alone.
            The whole prompt is computed then, a cached prefix is not read.
        num_future: Positions behind the prompt whose rotation it reads.
    """

    needs: ClassVar[frozenset[str]]
    query_aware: ClassVar[bool]
    decodes: ClassVar[bool] = False
    accumulates: ClassVar[bool] = False

    @abstractmethod
    def score(self, rows: LayerRows) -> torch.Tensor:
        """Return float32 ``(num_kv_heads, num_rows)``; the highest stay, ties at the lower row."""

    @property
    def query_window(self) -> int:
        """Newest queries it reads."""
        return 0

    @property
    def min_rows(self) -> int:
        """Rows it never evicts; a smaller budget is raised to this."""
        return 1

    @property
    def num_future(self) -> int:
        """Positions behind the prompt whose rotation it reads."""
        return 0

    @property
    def is_relative(self) -> bool:
        """Whether positions count within the cache: kept keys are turned to their new rows."""
        return False

    @property
    def layer_steps(self) -> int:
        """In how many groups of layers budgets differ."""
        return 1

    def budgets(self, mean: int, num_rows: int, num_groups: int) -> Sequence[int]:
        """Return the rows that each group of layers keeps, first layers first.

        Args:
            mean: What the configuration asks for.
            num_rows: Rows there are.
            num_groups: Groups of layers.
        """
        del num_rows
        return [mean] * num_groups


PRESSES: Registry[type[Press]] = Registry("KV press")
"""Frozen dataclasses by the name of the method."""


def check_count(name: str, value: object, low: int) -> None:
    """Refuse what is not a whole number of at least ``low``.

    Raises:
        ConfigError: Names option and value.
    """
    if isinstance(value, bool) or not isinstance(value, int) or value < low:
        raise ConfigError(
            f"kv_eviction: {name} must be a whole number >= {low}, got {value!r}.",
            field=f"kv_eviction.{name}",
            value=value,
        )


def check_share(name: str, value: object, *, closed: bool = False) -> None:
    """Refuse what is not a number in (0, 1], or in [0, 1] where ``closed``.

    Raises:
        ConfigError: Names option and value.
    """
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or not 0 <= value <= 1 or (value == 0 and not closed):  # type: ignore[operator]
        raise ConfigError(
            f"kv_eviction: {name} must be a number in {'[' if closed else '('}0, 1], got "
            f"{value!r}.",
            field=f"kv_eviction.{name}",
            value=value,
        )


def check_flag(name: str, value: object) -> None:
    """Refuse what is neither true nor false.

    Raises:
        ConfigError: Names option and value.
    """
    if not isinstance(value, bool):
        raise ConfigError(
            f"kv_eviction: {name} must be true or false, got {value!r}.",
            field=f"kv_eviction.{name}",
            value=value,
        )
