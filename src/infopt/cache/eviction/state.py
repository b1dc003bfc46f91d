"""What eviction remembers of one sequence."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch

from infopt.cache.eviction.attention import AttentionSums
from infopt.cache.eviction.config import EvictionConfig
from infopt.cache.groups import KVLayout
from infopt.cache.manager import SequenceCache


@dataclass(slots=True, eq=False)
class EvictionState:
    """When to evict from a sequence, and what its press has seen.

    Eviction happens between steps: once when the prompt is complete, and then, for presses that go
    on, whenever a group holds ``budget + interval`` rows. Both depend on the sequence alone: the
    same rows go whatever shares its batch.

    Attributes:
        config: Press and budget.
        num_prompt: Tokens of the prompt.
        budgets: Per KV group, rows that stay; None where nothing is evicted (window groups).
        interval: New rows between two evictions while decoding.
        positions: Per KV group, true positions of the rows that the last eviction left, int64
            ``(num_layers, num_kv_heads, num_rows)``; None before the first one. Rows behind them
            hold the newest tokens.
        queries: Rotated queries of the newest tokens, ``(num_layers, num_queries, width)``.
        query_end: Position behind the newest of them.
        sums: Per KV group, attention so far, for presses that accumulate.
    """

    config: EvictionConfig
    num_prompt: int
    budgets: tuple[int | None, ...]
    interval: int
    positions: list[torch.Tensor | None] = field(init=False)
    queries: torch.Tensor | None = field(init=False, default=None)
    query_end: int = field(init=False, default=0)
    sums: list[AttentionSums | None] = field(init=False)

    def __post_init__(self) -> None:
        """Start without rows."""
        self.reset()

    @classmethod
    def plan(
        cls, config: EvictionConfig, layout: KVLayout, num_prompt: int, max_tokens: int
    ) -> EvictionState | None:
        """Return the state of a new sequence; None where nothing would ever be evicted.

        Args:
            config: Press and budget.
            layout: KV groups.
            num_prompt: Tokens of the prompt.
            max_tokens: Most tokens of the output. The last has no row.
        """
        full = [index for index, group in enumerate(layout.groups) if group.window is None]
        shares = dict(zip(full, config.budgets(num_prompt, len(full)), strict=True))
        budgets = tuple(shares.get(index) for index in range(len(layout.groups)))
        state = cls(config, num_prompt, budgets, config.interval_pages * layout.block_size)
        num_rows = num_prompt + max_tokens - 1
        if max_tokens <= 1 or not any(state._ever_evicts(b, num_rows) for b in shares.values()):
            return None
        return state

    def reset(self) -> None:
        """Forget everything: the sequence is computed again from its start."""
        self.positions = [None] * len(self.budgets)
        self.sums = [None] * len(self.budgets)
        self.queries, self.query_end = None, 0

    def due(self, cache: SequenceCache) -> list[int]:
        """Return the groups that hold too many rows."""
        if cache.num_tokens < self.num_prompt:
            return []
        return [
            group
            for group, budget in enumerate(self.budgets)
            if budget is not None and self._is_due(cache, group, budget)
        ]

    def room(self, cache: SequenceCache) -> int | None:
        """Return the rows until the next eviction while decoding; None where there is none."""
        if not self.config.decode:
            return None
        limits = [
            budget + self.interval - cache.num_rows[group]
            for group, budget in enumerate(self.budgets)
            if budget is not None
        ]
        return min(limits)

    def position_shift(self, cache: SequenceCache) -> int:
        """Return what is taken off the true positions of tokens to come.

        Args:
            cache: The sequence's rows. Where positions are relative, all groups evict alike.
        """
        return max(cache.num_evicted) if self.config.press.is_relative else 0

    def wants_queries(self, cache: SequenceCache, start: int, end: int) -> bool:
        """Whether the queries of the tokens ``start .. end`` will be read."""
        press = self.config.press
        if press.accumulates:
            return True
        window, room = press.query_window, self.room(cache)
        if not window:
            return False
        if start < self.num_prompt:
            return end > self.num_prompt - window and self._evicts_prompt
        return room is not None and end - start + window > room

    def add_queries(self, queries: torch.Tensor, start: int) -> None:
        """Remember queries of consecutive tokens.

        Args:
            queries: ``(num_layers, num_tokens, width)``.
            start: Position of the first.
        """
        end = start + queries.shape[1]
        if self.queries is not None and self.query_end == start:
            queries = torch.cat((self.queries, queries), 1)
        window = self.config.press.query_window
        if not self.config.press.accumulates and queries.shape[1] > window:
            queries = queries[:, -window:].clone()  # a view would keep the whole step
        self.queries, self.query_end = queries, end

    @property
    def num_queries(self) -> int:
        """Queries that are remembered."""
        return 0 if self.queries is None else self.queries.shape[1]

    @property
    def query_start(self) -> int:
        """Position of the oldest remembered query."""
        return self.query_end - self.num_queries

    def take_queries(self, num_tokens: int) -> torch.Tensor:
        """Take the oldest remembered queries out, for presses that accumulate."""
        assert self.queries is not None
        taken, rest = self.queries[:, :num_tokens], self.queries[:, num_tokens:]
        self.queries = rest.clone()
        return taken

    def keep(self, group: int, rows: torch.Tensor, positions: torch.Tensor) -> None:
        """Note which rows of a group an eviction keeps.

        Args:
            group: KV group.
            rows: int64 ``(num_layers, num_kv_heads, num_kept)``, ascending.
            positions: True positions of all rows before, as :meth:`row_positions` gives them.
        """
        self.positions[group] = positions.gather(2, rows)
        sums = self.sums[group]
        if sums is not None:
            sums.keep(rows)

    def forget_queries(self, cache: SequenceCache) -> None:
        """Drop what nobody will read: the prompt is done, and nothing is evicted after it."""
        if not self.config.decode and cache.num_tokens >= self.num_prompt:
            self.queries = None
            self.sums = [None] * len(self.budgets)

    def max_rows(self, group: int, num_tokens: int) -> int:
        """Return the most rows that an evicted group of a sequence may hold.

        Args:
            group: KV group.
            num_tokens: Most tokens of prompt and output.
        """
        budget = self.budgets[group]
        if budget is None:
            return num_tokens
        grown = self.interval if self.config.decode else num_tokens - self.num_prompt
        return min(budget + grown, num_tokens)

    def row_positions(
        self, group: int, cache: SequenceCache, shape: tuple[int, int], device: torch.device
    ) -> torch.Tensor:
        """Return true positions, int64 ``(num_layers, num_kv_heads, num_rows)``.

        Args:
            group: KV group.
            cache: The sequence's rows.
            shape: ``(num_layers, num_kv_heads)`` of the group.
            device: Where to.
        """
        kept, num_rows = self.positions[group], cache.num_rows[group]
        num_kept = 0 if kept is None else kept.shape[2]
        newest = torch.arange(num_kept, num_rows, device=device) + cache.num_evicted[group]
        newest = newest.expand(*shape, -1)
        return newest if kept is None else torch.cat((kept, newest), 2)

    @property
    def _evicts_prompt(self) -> bool:
        return any(b is not None and self.num_prompt > b for b in self.budgets)

    def _is_due(self, cache: SequenceCache, group: int, budget: int) -> bool:
        if not cache.num_evicted[group] and self.num_prompt > budget:
            return True
        return self.config.decode and cache.num_rows[group] >= budget + self.interval

    def _ever_evicts(self, budget: int, num_rows: int) -> bool:
        grows_over = self.config.decode and num_rows >= budget + self.interval
        return self.num_prompt > budget or grows_over
