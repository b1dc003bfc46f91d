"""How many pages sequences will take: what admission compares with the pools."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from infopt.cache.hashing import PageKey
from infopt.cache.manager import CacheManager, SequenceCache
from infopt.cache.quantized_pages import PageNeed, QuantizedLayout


class Growth(NamedTuple):
    """What a sequence may still store.

    Attributes:
        stored: Rows that it holds.
        pending: Known tokens to be computed, chunk by chunk.
        output: Tokens after them.
    """

    stored: int
    pending: int
    output: int = 0

    @property
    def total(self) -> int:
        """All tokens to come."""
        return self.pending + self.output


def need_to_start(
    manager: CacheManager, cache: SequenceCache, keys: list[PageKey], num_tokens: int
) -> PageNeed:
    """Return what an empty sequence takes to adopt a prefix and store ``num_tokens`` in all."""
    num_groups = len(manager.layout.groups)
    full = manager.num_new_pages(cache, num_tokens) - len(keys) * num_groups
    full += manager.num_pages_to_adopt(keys)
    if manager.quantized is None:
        return PageNeed(full)
    layout, num_found = manager.quantized.layout, len(keys) * manager.layout.block_size
    new = sum(
        layout.num_row_groups(index, num_tokens) - layout.num_row_groups(index, num_found)
        for index in range(num_groups)
    )
    return PageNeed(full, max(new, 0) + manager.quantized.num_to_adopt(keys, num_found))


def need_to_restore(
    manager: CacheManager,
    host_tables: list[list[int]],
    host_quantized: list[list[int]],
    rows: list[int],
) -> PageNeed:
    """Return what a swapped-out sequence takes to come back and go on.

    Args:
        manager: The pools.
        host_tables: Per group, its host pages.
        host_quantized: The same for quantized pages.
        rows: Per group, rows that it then stores.
    """
    size = manager.layout.block_size
    both = zip(host_tables, rows, strict=True)
    full = sum(_num_missing(hosts, -(-count // size)) for hosts, count in both)
    if manager.quantized is None:
        return PageNeed(full)
    layout = manager.quantized.layout
    quantized = sum(
        _num_missing(hosts, layout.num_row_groups(index, rows[index]))
        for index, hosts in enumerate(host_quantized)
    )
    return PageNeed(full, quantized)


def need_to_grow(manager: CacheManager, growths: Iterable[Growth]) -> PageNeed:
    """Return the most pages that sequences may come to lack."""
    if manager.quantized is not None:
        layout = manager.quantized.layout
        return sum((_quantized_growth(layout, growth) for growth in growths), PageNeed())
    size = manager.layout.block_size
    pages = sum(-(-growth.total // size) for growth in growths)
    return PageNeed(pages * len(manager.layout.groups))


def _quantized_growth(layout: QuantizedLayout, growth: Growth) -> PageNeed:
    """Full pages of old rows come back as fast as new ones are taken, but for the chunk in work."""
    size, fmt = layout.layout.block_size, layout.format
    need = PageNeed()
    for index in range(len(layout.layout.groups)):
        new = -(-growth.total // size)
        if not layout.is_quantized(index):
            need += PageNeed(new)
            continue
        kept = -(-growth.stored // size) - layout.num_readable(index, growth.stored)
        most = fmt.residual // size + 2 + -(-growth.pending // size)
        before = layout.num_row_groups(index, growth.stored)
        after = layout.num_row_groups(index, growth.stored + growth.total)
        need += PageNeed(min(new, max(most - kept, 0)), after - before)
    return need


def _num_missing(hosts: list[int], total: int) -> int:
    """Return the pages of a table that has ``total`` places."""
    return sum(host >= 0 for host in hosts) + max(total - len(hosts), 0)
