"""The second form of KV pages: older rows in fewer bits, in a pool of their own.

Rows of a KV group are first written to full-precision pages. A *row group* of ``group_size`` rows
is quantized into one quantized page in the first step with a query that reads some of it quantized
(see :mod:`infopt.ops.kv_quantization` for the rule); a full-precision page goes back to its pool
when no later query reads it. Plain Python over plain data, like the manager that this belongs to.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass

from infopt.cache.block_pool import NULL_PAGE, BlockPool
from infopt.cache.groups import KVLayout
from infopt.cache.hashing import KeyChain, PageKey
from infopt.cache.sequence_cache import SequenceCache
from infopt.ops.kv_quantization import KVFormat

Keys = KeyChain | list[PageKey]
"""Keys of the pages of a prefix, by position."""


@dataclass(frozen=True, slots=True)
class PageNeed:
    """Pages of both forms."""

    full: int = 0
    quantized: int = 0

    def __add__(self, other: PageNeed) -> PageNeed:
        """Add both kinds."""
        return PageNeed(self.full + other.full, self.quantized + other.quantized)


@dataclass(frozen=True, slots=True)
class QuantizedLayout:
    """Which rows are kept quantized, and what they take.

    Window groups whose window is shorter than residual and page together have hardly a row that any
    query could read quantized: they keep full precision alone.

    Attributes:
        layout: KV groups and page shape.
        format: How rows are coded.
    """

    layout: KVLayout
    format: KVFormat

    @property
    def page_bytes(self) -> int:
        """Bytes of a quantized page: all heads of ``layers_per_group`` layers, codes and steps."""
        heads = self.layout.layers_per_group * self.layout.num_kv_heads
        return heads * self.format.head_bytes(self.layout.head_dim)

    @property
    def pages_per_group(self) -> int:
        """Full-precision pages that hold a row group."""
        return self.format.group_size // self.layout.block_size

    @property
    def bytes_per_token(self) -> float:
        """Bytes of one old token over all groups, those in full precision included."""
        full = self.layout.page_bytes / self.layout.block_size
        quantized = self.page_bytes / self.format.group_size
        groups = range(len(self.layout.groups))
        return sum(quantized if self.is_quantized(index) else full for index in groups)

    @property
    def num_groups(self) -> int:
        """KV groups that have quantized pages."""
        return sum(self.is_quantized(index) for index in range(len(self.layout.groups)))

    def is_quantized(self, index: int) -> bool:
        """Whether a KV group has quantized pages."""
        window = self.layout.groups[index].window
        return window is None or window >= self.format.residual + self.layout.block_size

    def num_readable(self, index: int, row: int) -> int:
        """Return how many leading pages the query in a row reads quantized."""
        if not self.is_quantized(index):
            return 0
        return self.format.num_readable_pages(row, self.layout.block_size)

    def num_row_groups(self, index: int, row: int) -> int:
        """Return how many row groups must be quantized before the query in a row can read."""
        rows = self.num_readable(index, row) * self.layout.block_size
        return -(-rows // self.format.group_size)

    def first_row_group(self, index: int, row: int) -> int:
        """Return the first row group that the query in a row sees."""
        window = self.layout.groups[index].window
        return 0 if window is None else max(row - window + 1, 0) // self.format.group_size

    def max_pages(self, num_tokens: int, max_chunk: int) -> PageNeed:
        """Return the most pages a sequence holds at one moment; see `KVLayout.max_pages`."""
        size, full, quantized = self.layout.block_size, 0, 0
        for index, group in enumerate(self.layout.groups):
            chunk = -(-min(max_chunk, num_tokens) // size)
            kept = -(-num_tokens // size)
            if self.is_quantized(index):
                kept = min(kept, self.format.residual // size + 1 + chunk)
                quantized += self._max_row_groups(index, num_tokens, max_chunk)
            elif group.window is not None:
                seen = group.window - 1 + min(max_chunk, num_tokens)
                kept = min(kept, -(-seen // size) + 1)
            full += kept
        return PageNeed(full, quantized)

    def _max_row_groups(self, index: int, num_tokens: int, max_chunk: int) -> int:
        total = self.num_row_groups(index, num_tokens)
        window, size = self.layout.groups[index].window, self.format.group_size
        if window is None:
            return total
        return min(total, -(-(window - 1 + min(max_chunk, num_tokens)) // size) + 1)


class QuantizedPool:
    """Allocates, shares, registers and frees the quantized pages of sequences.

    Args:
        layout: What is quantized.
        num_pages: Quantized pages in the pool.
    """

    def __init__(self, layout: QuantizedLayout, num_pages: int) -> None:
        """Start with an empty pool."""
        self.layout = layout
        self.pool = BlockPool(num_pages)
        self.pages_per_group = layout.pages_per_group

    def new_tables(self) -> list[list[int]]:
        """Return empty tables, one per KV group."""
        return [[] for _ in self.layout.layout.groups]

    def num_new_pages(self, cache: SequenceCache, num_rows: int) -> int:
        """Return the pages missing for a step that ends with ``num_rows`` rows stored.

        The next query, in row ``num_rows``, counts too: full pages that it reads quantized go back
        to their pool at the end of the step.
        """
        return sum(
            max(self._num_row_groups(cache, index, num_rows) - len(table), 0)
            for index, table in enumerate(cache.quantized_tables)
        )

    def _num_row_groups(self, cache: SequenceCache, index: int, num_tokens: int) -> int:
        return self.layout.num_row_groups(index, num_tokens - cache.num_evicted[index])

    def compact(self, cache: SequenceCache, index: int, num_rows: int) -> list[int]:
        """Keep the pages that so many rows of a group take, all of them its own.

        Returns:
            The pages, to be written anew.
        """
        table, count = cache.quantized_tables[index], self.layout.num_row_groups(index, num_rows)
        while len(table) > count:
            self.pool.release(table.pop())
        cache.num_quantized[index] = cache.num_findable[index] = count
        return list(table)

    def allocate(self, cache: SequenceCache, num_rows: int) -> bool:
        """Make room for what a step that ends with ``num_rows`` rows quantizes; False without.

        What was allocated and not committed yet is what the step quantizes.
        """
        if self.num_new_pages(cache, num_rows) > self.pool.num_available:
            return False
        for index, table in enumerate(cache.quantized_tables):
            needed = self._num_row_groups(cache, index, num_rows)
            table.extend(self.pool.allocate() for _ in range(needed - len(table)))
        return True

    def commit(self, cache: SequenceCache, num_rows: int, has_keys: bool) -> None:
        """Note that what was allocated is written; drop what lies behind windows.

        Args:
            cache: The sequence.
            num_rows: Rows stored: the next query's row.
            has_keys: Whether pages become findable under the keys of the sequence.
        """
        for index, table in enumerate(cache.quantized_tables):
            if has_keys:
                self._register(cache, index)
            cache.num_quantized[index] = len(table)
            row = num_rows - cache.num_evicted[index]
            first = min(self.layout.first_row_group(index, row), len(table))
            for group in range(first - 1, -1, -1):
                if table[group] == NULL_PAGE:
                    break
                self.pool.release(table[group])
                table[group] = NULL_PAGE

    def is_findable(self, chain: KeyChain, index: int, position: int) -> bool:
        """Whether the row group that holds a page of a prefix is cached."""
        last = (position // self.pages_per_group + 1) * self.pages_per_group - 1
        if not self.layout.is_quantized(index) or last >= chain.limit:
            return False
        return self.pool.lookup((index, chain[last])) is not None

    def holds(self, chain: KeyChain, index: int, num_rows: int) -> bool:
        """Whether all that the query in row ``num_rows`` reads quantized is cached."""
        return all(self.pool.lookup(key) is not None for key in self._keys(chain, index, num_rows))

    def adopt(self, cache: SequenceCache, chain: Keys, num_rows: int) -> None:
        """Share what the query in row ``num_rows`` reads quantized."""
        for index, table in enumerate(cache.quantized_tables):
            total = self.layout.num_row_groups(index, num_rows)
            first = min(self.layout.first_row_group(index, num_rows), total)
            table[:] = [NULL_PAGE] * first
            for key in self._keys(chain, index, num_rows):
                page = self.pool.lookup(key)
                assert page is not None
                self.pool.share(page)
                table.append(page)
            cache.num_quantized[index] = cache.num_findable[index] = len(table)

    def num_to_adopt(self, chain: Keys, num_rows: int) -> int:
        """Return how many evictable pages :meth:`adopt` takes out of the available ones."""
        pages = (
            self.pool.lookup(key)
            for index in range(len(self.layout.layout.groups))
            for key in self._keys(chain, index, num_rows)
        )
        return sum(page is not None and self.pool.is_cached(page) for page in pages)

    def restore(self, cache: SequenceCache, host_tables: list[list[int]]) -> list[tuple[int, int]]:
        """Give a swapped-out sequence pages again; see `CacheManager.restore`."""
        moves = []
        for index, hosts in enumerate(host_tables):
            table = cache.quantized_tables[index]
            for host in hosts:
                page = NULL_PAGE if host < 0 else self.pool.allocate()
                table.append(page)
                if host >= 0:
                    moves.append((host, page))
            cache.num_quantized[index] = len(table)
        return moves

    def free(self, cache: SequenceCache) -> None:
        """Give all pages back, later ones first."""
        tables = cache.quantized_tables
        for position in range(max(map(len, tables)) - 1, -1, -1):
            for table in tables:
                if position < len(table) and table[position] != NULL_PAGE:
                    self.pool.release(table[position])
        for index, table in enumerate(tables):
            table.clear()
            cache.num_quantized[index] = cache.num_findable[index] = 0

    def _register(self, cache: SequenceCache, index: int) -> None:
        """Make what is written findable, also what came back from the host without keys."""
        table = cache.quantized_tables[index]
        for group in range(cache.num_findable[index], len(table)):
            if table[group] != NULL_PAGE:
                key = cache.keys[(group + 1) * self.pages_per_group - 1]
                self.pool.register(table[group], (index, key))
        cache.num_findable[index] = len(table)

    def _keys(self, chain: Keys, index: int, num_rows: int) -> list[Hashable]:
        """Return the keys of what a query reads; scales depend on all tokens of a row group."""
        total = self.layout.num_row_groups(index, num_rows)
        first = self.layout.first_row_group(index, num_rows)
        count = self.pages_per_group
        return [(index, chain[(group + 1) * count - 1]) for group in range(first, total)]


def first_full_page(
    layout: KVLayout, quantized: QuantizedLayout | None, index: int, row: int
) -> int:
    """Return the first page of a KV group that the query in a row reads in full precision.

    Args:
        layout: KV groups and page shape.
        quantized: Which rows are kept quantized; None: none.
        index: The group.
        row: Row of the query: rows stored before it.
    """
    window = layout.groups[index].window
    first = 0 if window is None else max(row - window + 1, 0) // layout.block_size
    return first if quantized is None else max(first, quantized.num_readable(index, row))


def row_group_jobs(layout: QuantizedLayout, cache: SequenceCache, index: int) -> list[list[int]]:
    """Return what is allocated and not yet written: each quantized page, then its full pages."""
    full, table, count = cache.tables[index], cache.quantized_tables[index], layout.pages_per_group
    return [
        [table[group], *full[group * count : (group + 1) * count]]
        for group in range(cache.num_quantized[index], len(table))
    ]
