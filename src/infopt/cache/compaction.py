"""Moving the rows that an eviction keeps together, so that their pages become fewer.

The manager says which pages are written and lets the others go; `infopt.cache.pages` copies.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import torch

from infopt.cache.block_pool import BlockPool


@dataclass(frozen=True)
class KeptRows:
    """Rows of one sequence in one KV group that stay; as many in each layer and key head.

    Attributes:
        rows: int64 ``(num_layers, num_kv_heads, num_rows)``, ascending.
    """

    rows: torch.Tensor

    @property
    def num_rows(self) -> int:
        """Rows that stay."""
        return self.rows.shape[2]

    @cached_property
    def num_unmoved(self) -> int:
        """First rows that stay where they are in all layers and heads."""
        same = self.rows == torch.arange(self.num_rows, device=self.rows.device)
        return int(same.flatten(0, 1).all(0).int().cumprod(0).sum())


@dataclass(frozen=True, slots=True)
class QuantizedMove:
    """The part of a compaction that concerns quantized pages.

    Attributes:
        group: KV group.
        num_rows: Rows before.
        num_read: Of those, rows that are read from quantized pages.
        sources: Quantized pages of the group before.
        targets: Quantized pages of the group after.
    """

    group: int
    num_rows: int
    num_read: int
    sources: list[int]
    targets: list[int]


@dataclass(frozen=True, slots=True)
class RowMove:
    """Copies that a compaction needs.

    Attributes:
        kept: Rows that stay; the i-th becomes row i.
        sources: Pages of the group before.
        targets: Pages of the group after; some may be sources.
        start: First row that moves or changes its page; those before it are quantized or stay.
        quantized: What happens to quantized pages; None where the group has none.
    """

    kept: KeptRows
    sources: list[int]
    targets: list[int]
    start: int
    quantized: QuantizedMove | None = None


def writable_pages(pool: BlockPool, pages: Sequence[int]) -> list[tuple[int, bool]]:
    """Return each page and whether it may be written over: nobody else sees or finds it."""
    return [(p, pool.reference_count(p) == 1 and not pool.has_key(p)) for p in pages]
