"""Turns a step plan into tensors, runs the model, and returns logits."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import chain
from typing import Any

import torch

from infopt.cache.groups import KVLayout
from infopt.cache.pages import PageStore
from infopt.cache.quantized_pages import row_group_jobs
from infopt.engine.decode_graphs import DecodeGraphs
from infopt.engine.step_plan import ScheduledSequence, StepPlan
from infopt.models.decoder import Decoder
from infopt.ops import ForwardContext, GroupContext, OpSet
from infopt.ops.context import QuantizedTables

LOGIT_BLOCK_ROWS = 128
"""Rows of logits held at once: a 262k vocabulary takes 134 MB for 128 rows."""


class ModelRunner:
    """Runs a decoder over the page store.

    Attributes:
        model: The decoder.
        store: Page memory.
        layout: KV groups.
        graphs: Replays decode steps; None runs all of them kernel by kernel.
        why_no_graphs: The reason, where there are none.
    """

    graphs: DecodeGraphs | None = None
    why_no_graphs = "not asked for"

    def __init__(
        self,
        model: Decoder,
        store: PageStore,
        layout: KVLayout,
        layers: Sequence[int] | None = None,
    ) -> None:
        """Take views of every layer's pages once.

        Args:
            model: The decoder.
            store: Page memory.
            layout: KV groups.
            layers: Indices of its layers, where it leaves some of the layout's out.
        """
        self.model, self.store, self.layout = model, store, layout
        pages = store.layer_pages(model.config.num_layers)
        self._pages = pages if layers is None else [pages[layer] for layer in layers]
        model.bind(self._pages)

    @property
    def device(self) -> torch.device:
        """Where the model runs."""
        return self.model.device

    def swap(self, plan: StepPlan) -> None:
        """Make the copies of a plan: out to the host first, then back."""
        self.store.swap_out(plan.swap_out)
        self.store.swap_in(plan.swap_in)
        if self.store.quantized is not None:
            self.store.quantized.swap_out(plan.swap_out_quantized)
            self.store.quantized.swap_in(plan.swap_in_quantized)

    def build(self, plan: StepPlan, rows: list[int]) -> ForwardContext:
        """Lay the planned tokens out as one flat batch, on the host.

        Args:
            plan: What to compute; single-token sequences come first.
            rows: Tokens (by place in the flat batch, padding apart) whose hidden state is wanted.
        """
        items, padding = plan.scheduled, plan.num_padding_tokens
        tokens = list(chain.from_iterable(_tokens_of(item) for item in items))
        positions = list(chain.from_iterable(_positions_of(item) for item in items))
        num_singles = sum(item.num_tokens == 1 for item in items)
        starts, contexts = [0], [item.start + item.num_tokens for item in items]
        for item in items:
            starts.append(starts[-1] + item.num_tokens)
        if padding:  # padding rows go first: single tokens that see only the null page
            tokens, positions = [0] * padding + tokens, [0] * padding + positions
            starts = [*range(padding), *(start + padding for start in starts)]
            contexts, num_singles = [1] * padding + contexts, num_singles + padding
        return ForwardContext(
            input_ids=_tensor(tokens),
            positions=_tensor(positions),
            query_starts=starts,
            context_lens=contexts,
            num_decodes=num_singles,
            groups=[self._group(index, items, padding) for index in range(len(self.layout.groups))],
            logit_rows=_tensor([row + padding for row in rows]),
        )

    @torch.inference_mode()
    def hidden(self, ctx: ForwardContext) -> torch.Tensor:
        """Run the layers on a batch from :meth:`build`.

        Returns:
            Hidden states of ``ctx.logit_rows``, ``(num_logit_rows, hidden_size)``. They are valid
            until the next call: steps that are replayed leave theirs in the same place.
        """
        replayed = self.graphs.run(ctx) if self.graphs is not None else None
        return self.compute(_to_device(ctx, self.device)) if replayed is None else replayed

    def compute(self, ctx: ForwardContext) -> torch.Tensor:
        """Run the layers kernel by kernel on a batch that lies on the device; see `hidden`."""
        return self.model.forward_hidden(ctx, self._pages).index_select(0, ctx.logit_rows)

    @torch.inference_mode()
    def logit_blocks(self, hidden: torch.Tensor) -> Iterable[torch.Tensor]:
        """Yield logits, float32 ``(<= LOGIT_BLOCK_ROWS, vocab_size)``, block by block."""
        for block in hidden.split(LOGIT_BLOCK_ROWS):
            yield self.model.logits(block)

    def describe_graphs(self) -> dict[str, Any]:
        """Return whether decode steps are replayed, why not, and how often they were."""
        if self.graphs is not None:
            return self.graphs.describe()
        return {"state": "off", "reason": self.why_no_graphs, "num_replays": 0, "buckets": {}}

    @contextmanager
    def using_ops(self, ops: OpSet) -> Iterator[None]:
        """Run with other ops (timed ones, say), kernel by kernel, until the block ends."""
        saved = self.model.ops, self._pages, self.graphs
        # A stack stays bound as long as it sees the same list.
        self.model.ops, self._pages, self.graphs = ops, list(self._pages), None
        try:
            yield
        finally:
            self.model.ops, self._pages, self.graphs = saved
            self.model.bind(self._pages)

    def _group(self, index: int, items: list[ScheduledSequence], num_padding: int) -> GroupContext:
        size, group = self.layout.block_size, self.layout.groups[index]
        tables = [item.sequence.cache.tables[index] for item in items]
        block_tables = _block_tables(tables, num_padding)
        slots = [0] * num_padding
        for item, table in zip(items, tables, strict=True):
            slots.extend(table[row // size] * size + row % size for row in _rows_of(item, index))
        old = self._quantized(index, items, num_padding)
        ctx = GroupContext(block_tables, _tensor(slots), group.window, quantized=old)
        if any(item.sequence.cache.num_evicted[index] for item in items):
            rows = chain.from_iterable(_rows_of(item, index) for item in items)
            ctx.rows = _tensor([*[0] * num_padding, *rows])
            ctx.row_lens = [*[1] * num_padding, *(_rows_of(item, index).stop for item in items)]
        return ctx

    def _quantized(
        self, index: int, items: list[ScheduledSequence], num_padding: int
    ) -> QuantizedTables | None:
        """Return the quantized tables of a group, and what the step quantizes itself."""
        store = self.store.quantized
        if store is None or not store.layout.is_quantized(index):
            return None
        caches = [item.sequence.cache for item in items]
        tables = [cache.quantized_tables[index] for cache in caches]
        jobs = [job for cache in caches for job in row_group_jobs(store.layout, cache, index)]
        width = 1 + store.layout.pages_per_group
        return QuantizedTables(
            _block_tables(tables, num_padding), _tensor(jobs).view(len(jobs), width)
        )


def _to_device(ctx: ForwardContext, device: torch.device) -> ForwardContext:
    """Return a batch on a device; the batch itself if it is there."""
    if ctx.input_ids.device == device:
        return ctx
    groups = [_group_to_device(group, device) for group in ctx.groups]
    return replace(
        ctx,
        input_ids=ctx.input_ids.to(device),
        positions=ctx.positions.to(device),
        groups=groups,
        logit_rows=ctx.logit_rows.to(device),
    )


def _group_to_device(group: GroupContext, device: torch.device) -> GroupContext:
    old = group.quantized
    return replace(
        group,
        block_tables=group.block_tables.to(device),
        slots=group.slots.to(device),
        rows=None if group.rows is None else group.rows.to(device),
        quantized=old and QuantizedTables(old.block_tables.to(device), old.jobs.to(device)),
    )


def _block_tables(tables: list[list[int]], num_padding: int) -> torch.Tensor:
    """Return tables as int32 rows, behind rows of null pages for padding."""
    width = max((len(table) for table in tables), default=1)
    block_tables = torch.zeros((num_padding + len(tables), width), dtype=torch.int32)
    for row, table in enumerate(tables, start=num_padding):
        block_tables[row, : len(table)] = torch.tensor(table, dtype=torch.int32)
    return block_tables


def _tensor(values: Sequence[int] | Sequence[Sequence[int]]) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int64)


def _tokens_of(item: ScheduledSequence) -> list[int]:
    known = item.sequence.token_ids[item.start : item.start + item.num_known_tokens]
    return [*known, *item.draft]


def _rows_of(item: ScheduledSequence, group: int) -> range:
    start = item.start - item.sequence.cache.num_evicted[group]
    return range(start, start + item.num_tokens)


def _positions_of(item: ScheduledSequence) -> range:
    """Return the positions that queries and keys are rotated to."""
    state = item.sequence.eviction
    start = item.start - (state.position_shift(item.sequence.cache) if state is not None else 0)
    return range(start, start + item.num_tokens)
