"""What ops need to know about one step, computed once and shared by all layers."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch


class KVPages(NamedTuple):
    """Keys and values of one layer, as views into the page pool.

    Attributes:
        keys: Shape ``(num_pages, num_kv_heads, block_size, head_dim)``; each page's block of one
            head is contiguous, pages are strided.
        values: Same shape.
    """

    keys: torch.Tensor
    values: torch.Tensor

    @property
    def block_size(self) -> int:
        """Tokens per page."""
        return self.keys.shape[2]


@dataclass(slots=True)
class GroupContext:
    """Where one KV group keeps its tokens in this step.

    Attributes:
        block_tables: int32 ``(num_seqs, max_pages)``: page ids by position // block_size. Entry 0
            is the null page: its rows are never visible to any query.
        slots: int64 ``(num_tokens,)``: ``page * block_size + offset`` to write each token to.
            Tokens computed for nothing (padding) point into the null page.
        window: Keys a query sees, itself included (None: all before it).
    """

    block_tables: torch.Tensor
    slots: torch.Tensor
    window: int | None = None


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
        shared: What a backend derives from the batch once and uses in all layers.
    """

    input_ids: torch.Tensor
    positions: torch.Tensor
    query_starts: list[int]
    context_lens: list[int]
    num_decodes: int
    groups: list[GroupContext]
    logit_rows: torch.Tensor
    shared: dict[Hashable, Any] = field(default_factory=dict, repr=False, compare=False)

    @property
    def num_seqs(self) -> int:
        """Sequences in the batch."""
        return len(self.context_lens)

    @property
    def num_tokens(self) -> int:
        """Tokens in the batch."""
        return self.query_starts[-1]
