"""Evicts rows between steps: what presses must see is kept during a step, and they choose after it.

Presses that read attention need queries, which the layers do not keep. In a step whose tokens a
press will ask about, the layers leave their rotated queries in ``ForwardContext.queries``.
Attention is computed again from these and the cached keys, for the sequence alone and in float32.
The cost is one more reading of a sequence's keys (per 64 tokens for presses that accumulate).
"""

from __future__ import annotations

import functools
from collections.abc import Mapping

import torch

from infopt.cache.compaction import KeptRows
from infopt.cache.eviction import EvictionState, LayerRows, select_rows
from infopt.cache.eviction.attention import AttentionSums
from infopt.cache.eviction.select import protect
from infopt.cache.manager import CacheManager, SequenceCache
from infopt.cache.pages import PageStore
from infopt.engine.sequence import Sequence
from infopt.engine.stats import EngineStats
from infopt.engine.step_plan import ScheduledSequence, StepPlan
from infopt.models.decoder import Decoder
from infopt.models.rope import rope_table, turn_table
from infopt.ops import ForwardContext

QUERY_BLOCK = 64
"""Queries whose attention is added up at once, between multiples of this position: sums must not
depend on how a prompt was cut into chunks."""


class Evictor:
    """Runs the presses of all sequences.

    Args:
        model: The decoder; its configuration says how attention is scaled and keys are rotated.
        cache: Block tables.
        store: Page memory.
        max_positions: Longest sequence.
    """

    def __init__(
        self, model: Decoder, cache: CacheManager, store: PageStore, max_positions: int
    ) -> None:
        """Take what is needed; nothing is computed."""
        self._model, self._cache, self._store = model, cache, store
        self._max_positions = max_positions
        self._asked: set[Sequence] = set()
        self._tables = functools.cache(self._rope_table)

    def prepare(self, plan: StepPlan, ctx: ForwardContext, stats: EngineStats) -> None:
        """Make room for the queries of a step where a press will read them."""
        self._asked = {item.sequence for item in plan.scheduled if _wants_queries(item)}
        if self._asked:
            config = self._model.config
            shape = (config.num_layers, ctx.num_tokens, config.num_heads * config.head_dim)
            ctx.queries = torch.empty(shape, dtype=self._model.dtype, device=self._model.device)
            stats.num_query_steps += 1

    @torch.inference_mode()
    def before_commit(
        self, plan: StepPlan, ctx: ForwardContext, num_kept: Mapping[Sequence, int]
    ) -> None:
        """Note the queries of a step, and the attention that they pay.

        Rows that the step quantized are still there in full: of both forms, each block of queries
        finds the one that the query behind it reads.

        Args:
            plan: What was computed.
            ctx: Its batch.
            num_kept: Guesses that became part of their sequence.
        """
        if ctx.queries is None:
            return
        offset = plan.num_padding_tokens
        for item in plan.scheduled:
            state = item.sequence.eviction
            if state is not None and item.sequence in self._asked:
                num_stored = item.num_known_tokens + num_kept.get(item.sequence, 0)
                new = ctx.queries[:, offset : offset + num_stored]
                self._note(item.sequence, state, new, item.start)
            offset += item.num_tokens

    @torch.inference_mode()
    def after_step(self, plan: StepPlan, stats: EngineStats) -> None:
        """Evict what is due after a committed step."""
        for item in plan.scheduled:
            state = item.sequence.eviction
            if state is not None and not item.sequence.is_finished:
                for group in state.due(item.sequence.cache):
                    self._evict(item.sequence, state, group, stats)
                state.forget_queries(item.sequence.cache)

    # ---------------------------------------------------------------- what presses see

    def _note(
        self, sequence: Sequence, state: EvictionState, queries: torch.Tensor, start: int
    ) -> None:
        state.add_queries(queries, start)
        if state.config.press.accumulates:
            while state.query_end // QUERY_BLOCK > state.query_start // QUERY_BLOCK:
                count = QUERY_BLOCK - state.query_start % QUERY_BLOCK
                self._add_attention(sequence, state, count)

    def _add_attention(self, sequence: Sequence, state: EvictionState, count: int) -> None:
        """Add the attention of the oldest ``count`` queries that are remembered."""
        start = state.query_start
        queries = state.take_queries(count)
        at = torch.arange(start, start + count)
        config, cache = self._model.config, sequence.cache
        for group, budget in enumerate(state.budgets):
            if budget is None:
                continue
            layers = list(self._cache.layout.groups[group].layers)
            rows = at - cache.num_evicted[group]
            keys, _ = self._read(sequence, group, int(rows[-1]) + 1)
            sums = state.sums[group]
            if sums is None:
                sums = AttentionSums(len(layers), config.num_kv_heads, keys.device)
                state.sums[group] = sums
            own = self._heads(queries[layers])
            sums.add(own, rows, keys.float(), config.attention_scale, config.attention_softcap)

    def _heads(self, queries: torch.Tensor) -> torch.Tensor:
        """Return float32 ``(..., num_heads, num_queries, head_dim)``."""
        heads = queries.unflatten(-1, (-1, self._model.config.head_dim))
        return heads.transpose(-2, -3).float()

    # ---------------------------------------------------------------- eviction

    def _evict(
        self, sequence: Sequence, state: EvictionState, group: int, stats: EngineStats
    ) -> None:
        """Keep the best rows of a group, and count what that frees."""
        cache, kept = sequence.cache, KeptRows(self._choose(sequence, state, group))
        used = self._used_bytes(cache)
        move = self._cache.compact(cache, group, kept, sequence.token_ids)
        self._store.move_rows(move, self._turns if state.config.press.is_relative else None)
        freed_bytes = max(used - self._used_bytes(cache), 0)
        sequence.metrics.kv_freed_bytes += freed_bytes
        stats.kv_freed_bytes += freed_bytes
        stats.num_evictions += 1

    def _used_bytes(self, cache: SequenceCache) -> int:
        """Return the bytes of all pages in tables; those that are only reserved do not count."""
        used, old = self._cache.num_used_pages, self._cache.quantized
        full = used.full - sum(map(len, cache.reserved))
        coded = used.quantized * old.layout.page_bytes if old is not None else 0
        return full * self._cache.layout.page_bytes + coded

    def _choose(self, sequence: Sequence, state: EvictionState, group: int) -> torch.Tensor:
        """Return the rows that stay, ``(num_layers, num_kv_heads, num_kept)``; note them."""
        if state.config.press.accumulates and state.num_queries:
            self._add_attention(sequence, state, state.num_queries)
        cache, budget = sequence.cache, state.budgets[group]
        assert budget is not None
        keys, values = self._read(sequence, group, cache.num_rows[group])
        layers = self._cache.layout.groups[group].layers
        shape = (len(layers), self._model.config.num_kv_heads)
        positions = state.row_positions(group, cache, shape, keys.device)
        spans = state.config.spans(state.num_prompt)
        kept = []
        for index, layer in enumerate(layers):
            rows = self._rows_of(sequence, state, group, index, layer, keys, values, positions)
            scores = protect(state.config.press.score(rows), positions[index], spans)
            kept.append(select_rows(scores, budget))
        chosen = torch.stack(kept)
        state.keep(group, chosen, positions)
        return chosen

    def _read(
        self, sequence: Sequence, group: int, num_rows: int
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the first rows of a group as the query in the row behind them reads them."""
        cache, old = sequence.cache, self._cache.quantized
        table = cache.tables[group]
        if old is None:
            return self._store.read_rows(group, table, num_rows)
        num_read = old.layout.num_readable(group, num_rows) * self._cache.layout.block_size
        return self._store.read_rows(
            group, table, num_rows, cache.quantized_tables[group], num_read
        )

    def _rows_of(
        self,
        sequence: Sequence,
        state: EvictionState,
        group: int,
        index: int,
        layer: int,
        keys: torch.Tensor,
        values: torch.Tensor,
        positions: torch.Tensor,
    ) -> LayerRows:
        """Return what the press sees of the ``index``-th layer of a group."""
        config, cache, press = self._model.config, sequence.cache, state.config.press
        queries = self._newest_queries(state, layer)
        at = torch.arange(state.query_end - queries.shape[1], state.query_end)
        cos, sin = self._tables(config.layer_kinds[layer], press.num_future)
        sums, budget = state.sums[group], state.budgets[group]
        assert budget is not None
        return LayerRows(
            layer=layer,
            num_kept=budget,
            keys=keys[index].float(),
            values=values[index].float(),
            positions=positions[index],
            queries=queries,
            query_rows=at - cache.num_evicted[group],
            query_positions=at,
            attention=None if sums is None else sums.mean(index),
            scale=config.attention_scale,
            softcap=config.attention_softcap,
            next_position=cache.num_tokens,
            cos=cos,
            sin=sin,
        )

    def _newest_queries(self, state: EvictionState, layer: int) -> torch.Tensor:
        if state.queries is None:
            config = self._model.config
            return torch.empty((config.num_heads, 0, config.head_dim), device=self._model.device)
        return self._heads(state.queries[layer])

    @functools.cached_property
    def _turns(self) -> torch.Tensor:
        config = self._model.config
        return turn_table(config.rope, config.head_dim, self._max_positions).to(self._model.device)

    def _rope_table(self, kind: str, num_future: int) -> tuple[torch.Tensor, torch.Tensor]:
        config = self._model.config
        rope = config.rope_window if kind == "window" and config.rope_window else config.rope
        length = self._max_positions + num_future if num_future else 0
        cos, sin = rope_table(rope, config.head_dim, length, torch.float32)
        return cos.to(self._model.device), sin.to(self._model.device)


def _wants_queries(item: ScheduledSequence) -> bool:
    state, start = item.sequence.eviction, item.start
    return state is not None and state.wants_queries(
        item.sequence.cache, start, start + item.num_tokens
    )
