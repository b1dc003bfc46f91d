"""Chooses the pages of what an eviction keeps: which are written, replaced, and given back."""

from __future__ import annotations

from collections.abc import Sequence

from infopt.cache.block_pool import NULL_PAGE, BlockPool
from infopt.cache.compaction import KeptRows, QuantizedMove, RowMove, writable_pages
from infopt.cache.groups import KVLayout
from infopt.cache.prefix_cache import PrefixCache
from infopt.cache.quantized_pages import QuantizedPool
from infopt.cache.sequence_cache import SequenceCache


class Compactor:
    """Makes block tables shorter.

    Args:
        layout: KV groups and page shape.
        pool: Full-precision pages.
        quantized: Pool of quantized pages; None keeps all rows in one form.
        prefixes: Makes prompts findable before rows of theirs go; None lets them go.
    """

    def __init__(
        self,
        layout: KVLayout,
        pool: BlockPool,
        quantized: QuantizedPool | None,
        prefixes: PrefixCache | None,
    ) -> None:
        """Take what is needed."""
        self._layout, self._pool, self._quantized = layout, pool, quantized
        self._prefixes = prefixes

    def num_to_reserve(self, num_adopted: int, num_rows: Sequence[int]) -> list[int]:
        """Return the pages that :meth:`reserve` takes, per group, for so many adopted pages.

        Beside quantized pages nothing is adopted, but rows that end within a page may take one more
        than as many that end with one.
        """
        if self._quantized is not None:
            return [int(rows > 0) for rows in num_rows]
        return [min(num_adopted, -(-rows // self._layout.block_size)) for rows in num_rows]

    def reserve(self, cache: SequenceCache, num_rows: Sequence[int]) -> None:
        """Hold the pages that evictions need because a sequence shares pages."""
        for group, count in enumerate(self.num_to_reserve(len(cache.keys), num_rows)):
            cache.reserved[group] = [self._pool.allocate() for _ in range(count)]

    def compact(
        self, cache: SequenceCache, group: int, kept: KeptRows, tokens: Sequence[int]
    ) -> RowMove:
        """Keep some rows of a group; see `CacheManager.compact`."""
        if self._quantized is not None:
            return self._compact_both(self._quantized, cache, group, kept)
        table, size = cache.tables[group], self._layout.block_size
        first, last = kept.num_unmoved // size, -(-kept.num_rows // size)
        old, reserved = list(table), cache.reserved[group]
        replaced_from = self._first_to_replace(cache, group, first, last)
        if self._prefixes is not None and replaced_from is not None:
            self._prefixes.register_group(cache, group, tokens)
            first = replaced_from
            new = [self._pool.allocate() for _ in range(first, last)]
        else:
            new = [
                page if is_own else reserved.pop()
                for page, is_own in writable_pages(self._pool, old[first:last])
            ]
        cache.num_evicted[group] += cache.num_rows[group] - kept.num_rows
        table[first:] = new
        for page in reversed(old[first:]):
            if page not in new:
                self._pool.release(page)
        shared = sum(not is_own for _, is_own in writable_pages(self._pool, table))
        self._pool.release_last(reserved, keep=shared)
        return RowMove(kept, old, list(table), first * size)

    def _compact_both(
        self, quantized: QuantizedPool, cache: SequenceCache, group: int, kept: KeptRows
    ) -> RowMove:
        """Keep some rows in pages of both forms; nobody else has these pages."""
        table, size = cache.tables[group], self._layout.block_size
        num_rows, old, layout = cache.num_rows[group], list(table), quantized.layout
        read, sources = layout.num_readable(group, num_rows), list(cache.quantized_tables[group])
        first = layout.num_readable(group, kept.num_rows)
        count = -(-kept.num_rows // size) - first
        spare = [page for page in old if page != NULL_PAGE]
        new = [(spare or cache.reserved[group]).pop() for _ in range(count)]
        table[:] = [NULL_PAGE] * first + new
        self._pool.release_last(spare)
        self._pool.release_last(cache.reserved[group])
        cache.num_evicted[group] += num_rows - kept.num_rows
        targets = quantized.compact(cache, group, kept.num_rows)
        coded = QuantizedMove(group, num_rows, read * size, sources, targets)
        return RowMove(kept, old, list(table), first * size, coded)

    def _first_to_replace(
        self, cache: SequenceCache, group: int, first: int, last: int
    ) -> int | None:
        """Return the first page to replace so that a prompt stays findable; None where it cannot.

        Args:
            cache: The sequence.
            group: KV group.
            first: First page that an eviction changes.
            last: End of the pages that it leaves.
        """
        if self._prefixes is None or cache.num_evicted[group]:
            return None
        if not all(self._pool.has_key(page) for page in cache.tables[group][:first]):
            first = 0  # a page of its own that stays would be findable, and never written to again
        return first if last - first <= self._pool.num_free else None
