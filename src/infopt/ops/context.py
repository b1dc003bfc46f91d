"""What ops need to know about one step, computed once and shared by all layers."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

if TYPE_CHECKING:
    from infopt.ops.kv_quantization import QuantizedPages


class KVPages(NamedTuple):
    """Keys and values of one layer, as views into the page pool.

    Attributes:
        keys: Shape ``(num_pages, num_kv_heads, block_size, head_dim)``; each page's block of one
            head is contiguous, pages are strided.
        values: Same shape.
        quantized: Older tokens in fewer bits; None where the layer keeps one form alone.
    """

    keys: torch.Tensor
    values: torch.Tensor
    quantized: QuantizedPages | None = None

    @property
    def block_size(self) -> int:
        """Tokens per page."""
        return self.keys.shape[2]


@dataclass(slots=True)
class QuantizedTables:
    """Where one KV group keeps its quantized rows in this step.

    Attributes:
        block_tables: int32 ``(num_seqs, max_groups)``: quantized pages by row // group_size. Entry
            0 is the null page.
        jobs: int64 ``(num_jobs, 1 + group_size / block_size)``: row groups to quantize before any
            query of the step reads them (see `infopt.ops.kv_quantization.quantize_pages`).
    """

    block_tables: torch.Tensor
    jobs: torch.Tensor


@dataclass(slots=True)
class GroupContext:
    """Where one KV group keeps its tokens in this step.

    Tokens lie in rows 0, 1, 2, ... of a group. As long as nothing is taken out a row is the
    position of its token; queries see the rows up to their own.

    Attributes:
        block_tables: int32 ``(num_seqs, max_pages)``: page ids by row // block_size. Entry 0 is the
            null page: its rows are never visible to any query.
        slots: int64 ``(num_tokens,)``: ``page * block_size + offset`` to write each token to.
            Tokens computed for nothing (padding) point into the null page.
        window: Keys a query sees, itself included (None: all before it).
        rows: int64 ``(num_tokens,)``: row of each token in this group (None: its position).
        row_lens: Per sequence, rows visible to its last query (None: its context length).
        quantized: The quantized part of the tables (None: there is none).
    """

    block_tables: torch.Tensor
    slots: torch.Tensor
    window: int | None = None
    rows: torch.Tensor | None = None
    row_lens: list[int] | None = None
    quantized: QuantizedTables | None = None

    def rows_of(self, ctx: ForwardContext) -> torch.Tensor:
        """Return the row of each token of the batch."""
        return ctx.positions if self.rows is None else self.rows

    def row_lens_of(self, ctx: ForwardContext) -> list[int]:
        """Return, per sequence, the rows visible to its last query."""
        return ctx.context_lens if self.row_lens is None else self.row_lens


@dataclass(slots=True)
class ForwardContext:
    """One flat, variable-length batch.

    Tokens of all sequences lie one after the other; the first ``num_decodes`` sequences have one
    token each, prefill chunks follow.

    Attributes:
        input_ids: int64 ``(num_tokens,)``.
        positions: int64 ``(num_tokens,)``.
        query_starts: ``num_seqs + 1`` offsets into the tokens.
        context_lens: Per sequence, tokens visible to its last query (cached + new).
        num_decodes: Leading sequences with a single token.
        groups: One entry per KV group.
        logit_rows: int64 ``(num_logit_rows,)``: tokens whose logits are wanted.
        queries: ``(num_layers, num_tokens, num_heads * head_dim)`` in the compute type: the layers
            leave their rotated queries here, where somebody wants them (None: nobody does).
        expert_ids: int64 ``(num_sparse_layers, num_tokens, top_k)``: layers with experts leave the
            experts of each token here, -1 for padding (None: nobody wants them).
        shared: What a backend derives from the batch once and uses in all layers.
    """

    input_ids: torch.Tensor
    positions: torch.Tensor
    query_starts: list[int]
    context_lens: list[int]
    num_decodes: int
    groups: list[GroupContext]
    logit_rows: torch.Tensor
    queries: torch.Tensor | None = None
    expert_ids: torch.Tensor | None = None
    shared: dict[Hashable, Any] = field(default_factory=dict, repr=False, compare=False)

    @property
    def num_seqs(self) -> int:
        """Sequences in the batch."""
        return len(self.context_lens)

    @property
    def num_tokens(self) -> int:
        """Tokens in the batch."""
        return self.query_starts[-1]
