"""Allocates the pages of sequences: block tables over the page pool, one per KV group."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from infopt.cache.block_pool import NULL_PAGE, BlockPool
from infopt.cache.compaction import KeptRows, RowMove
from infopt.cache.compactor import Compactor
from infopt.cache.groups import KVLayout
from infopt.cache.hashing import PageKey
from infopt.cache.prefix_cache import PrefixCache
from infopt.cache.quantized_pages import PageNeed, QuantizedPool, first_full_page
from infopt.cache.sequence_cache import SequenceCache


class CacheManager:
    """Allocates, shares, registers and frees the pages of sequences.

    Args:
        layout: KV groups and page shape.
        num_pages: Pages in the pool.
        identity: Everything that changes KV content (model, types); part of every key.
        enable_prefix_caching: Whether full pages become findable.
        quantized: Pool of quantized pages; None keeps all rows in one form.
    """

    def __init__(
        self,
        layout: KVLayout,
        num_pages: int,
        identity: Mapping[str, object],
        enable_prefix_caching: bool = True,
        quantized: QuantizedPool | None = None,
    ) -> None:
        """Start with an empty pool."""
        self.layout, self.quantized = layout, quantized
        self.pool = BlockPool(num_pages)
        prefixes = PrefixCache(layout, self.pool, quantized, identity)
        self._prefixes = prefixes if enable_prefix_caching else None
        self._compactor = Compactor(layout, self.pool, quantized, self._prefixes)
        self._live: dict[SequenceCache, None] = {}

    def new_sequence(self) -> SequenceCache:
        """Return an empty block table."""
        count = len(self.layout.groups)
        cache = SequenceCache(tables=[[] for _ in range(count)])
        if self.quantized is not None:
            cache.quantized_tables = self.quantized.new_tables()
            cache.num_quantized, cache.num_findable = [0] * count, [0] * count
        return cache

    def match_prefix(self, tokens: Sequence[int]) -> list[PageKey]:
        """Return the keys of the longest cached prefix that leaves one token to compute.

        A full group needs every page of the prefix; a window group those that the next token sees.
        Where old rows are quantized, each page is needed in the form in which that token reads it.
        """
        return [] if self._prefixes is None else self._prefixes.match(tokens)

    def adopt_prefix(self, cache: SequenceCache, keys: list[PageKey]) -> int:
        """Share the pages of a matched prefix with an empty sequence.

        Returns:
            The number of tokens found.
        """
        assert not cache.num_tokens and not cache.num_pages
        if self._prefixes is not None:
            self._prefixes.adopt(cache, keys)
        self._track(cache)
        return cache.num_tokens

    def num_pages_to_adopt(self, keys: list[PageKey]) -> int:
        """Return how many evictable pages a matched prefix takes out of the available ones."""
        return 0 if self._prefixes is None else self._prefixes.num_pages_to_adopt(keys)

    def pages_for(self, cache: SequenceCache, num_tokens: int) -> list[int]:
        """Return, per group, the pages that hold the rows of ``num_tokens`` tokens."""
        size = self.layout.block_size
        return [-(-(num_tokens - evicted) // size) for evicted in cache.num_evicted]

    def num_new_pages(self, cache: SequenceCache, num_tokens: int) -> int:
        """Return the pages missing to store ``num_tokens`` tokens in all."""
        needed = self.pages_for(cache, num_tokens)
        return sum(max(n - len(t), 0) for n, t in zip(needed, cache.tables, strict=True))

    @property
    def num_used_pages(self) -> PageNeed:
        """Referenced pages of both forms."""
        quantized = self.quantized.pool.num_used if self.quantized is not None else 0
        return PageNeed(self.pool.num_used, quantized)

    def fits(self, need: PageNeed) -> bool:
        """Whether so many pages can be had."""
        if self.quantized is not None and need.quantized > self.quantized.pool.num_available:
            return False
        return need.full <= self.pool.num_available

    def allocate(self, cache: SequenceCache, num_tokens: int) -> bool:
        """Make room for ``num_tokens`` tokens in all; False (and no change) if there is none."""
        if self.num_new_pages(cache, num_tokens) > self.pool.num_available:
            return False
        if self.quantized is not None and not self.quantized.allocate(cache, num_tokens):
            return False
        for needed, table in zip(self.pages_for(cache, num_tokens), cache.tables, strict=True):
            table.extend(self.pool.allocate() for _ in range(needed - len(table)))
        self._track(cache)
        return True

    def commit(
        self,
        cache: SequenceCache,
        tokens: Sequence[int],
        num_tokens: int,
        *,
        will_evict: bool = False,
    ) -> None:
        """Note that the first ``num_tokens`` of ``tokens`` are stored.

        Full pages become findable; pages behind a group's window go back to the pool, and so do
        those that are read quantized from now on and pages behind the last stored token (there are
        some where drafted tokens were rejected).

        Args:
            cache: Where they are stored.
            tokens: Of the sequence.
            num_tokens: How many are stored.
            will_evict: Rows will be evicted (or were): pages do not become findable, so that nobody
                shares them meanwhile.
        """
        cache.num_tokens = num_tokens
        for needed, table in zip(self.pages_for(cache, num_tokens), cache.tables, strict=True):
            while len(table) > needed:
                self.pool.release(table.pop())
        prefixes = None if will_evict else self._prefixes
        if prefixes is not None:
            prefixes.register(cache, tokens)
        old = None
        if self.quantized is not None:
            self.quantized.commit(cache, num_tokens, has_keys=prefixes is not None)
            old = self.quantized.layout
        for index, table in enumerate(cache.tables):
            row = num_tokens - cache.num_evicted[index]
            for position in range(first_full_page(self.layout, old, index, row) - 1, -1, -1):
                if table[position] == NULL_PAGE:
                    break
                self.pool.release(table[position])
                table[position] = NULL_PAGE

    def free(self, cache: SequenceCache) -> None:
        """Give all pages back; later ones are evicted before the prefix they depend on.

        A prefix needs its pages in all groups, so the order is by position over all of them.
        """
        for position in range(max(map(len, cache.tables)) - 1, -1, -1):
            for table in cache.tables:
                if position < len(table) and table[position] != NULL_PAGE:
                    self.pool.release(table[position])
        for table in cache.tables:
            table.clear()
        if self.quantized is not None:
            self.quantized.free(cache)
        for reserved in cache.reserved:
            self.pool.release_last(reserved)
        cache.keys, cache.num_tokens = [], 0
        cache.num_evicted = [0] * len(cache.tables)
        self._live.pop(cache, None)

    def reserve(self, cache: SequenceCache, num_rows: Sequence[int]) -> None:
        """Hold the pages that evictions from a sequence need because it shares pages.

        Args:
            cache: A sequence that has just adopted a prefix.
            num_rows: Per group, most rows that an eviction leaves (0 where nothing is evicted).
        """
        self._compactor.reserve(cache, num_rows)

    def num_to_reserve(self, num_adopted: int, num_rows: Sequence[int]) -> list[int]:
        """Return the pages that :meth:`reserve` takes, per group, for so many adopted pages.

        Beside quantized pages nothing is adopted, but rows that end within a page may take one more
        than as many that end with one.
        """
        return self._compactor.num_to_reserve(num_adopted, num_rows)

    def compact(
        self, cache: SequenceCache, group: int, kept: KeptRows, tokens: Sequence[int]
    ) -> RowMove:
        """Keep some rows of a group, in fewer pages; the others go back to the pool.

        Rows must be moved before anything else is allocated. Pages that others see, or may find,
        are replaced by the reserved ones; the others are written over. Where enough pages are free,
        all of them are replaced, and those of the prompt become findable.

        Args:
            cache: The sequence.
            group: KV group.
            kept: Rows that stay.
            tokens: Of the sequence: keys of its pages are made of them.

        Returns:
            From which pages rows move to which.
        """
        return self._compactor.compact(cache, group, kept, tokens)

    def restore(
        self, cache: SequenceCache, host_tables: list[list[int]], num_tokens: int
    ) -> list[tuple[int, int]]:
        """Give a swapped-out sequence pages again.

        Args:
            cache: Its empty block table.
            host_tables: Per group, host pages by row (negative where there was none).
            num_tokens: Tokens in its past.

        Returns:
            ``(host page, page)`` copies to make. The pages are private until the next commit
            registers them again.
        """
        moves = []
        for table, hosts in zip(cache.tables, host_tables, strict=True):
            for host in hosts:
                page = NULL_PAGE if host < 0 else self.pool.allocate()
                table.append(page)
                if host >= 0:
                    moves.append((host, page))
        cache.num_tokens = num_tokens
        self._track(cache)
        return moves

    def restore_quantized(
        self, cache: SequenceCache, host_tables: list[list[int]]
    ) -> list[tuple[int, int]]:
        """Give it quantized pages again; see :meth:`restore`."""
        return [] if self.quantized is None else self.quantized.restore(cache, host_tables)

    def reset_prefix_cache(self) -> None:
        """Forget all cached prefixes."""
        self.pool.clear_cache()
        if self.quantized is not None:
            self.quantized.pool.clear_cache()

    def num_stored_tokens(self) -> int:
        """Return the tokens kept in referenced pages, per group on average.

        A page that several sequences share is counted once for each of them.
        """
        size, total = self.layout.block_size, 0
        for cache in self._live:
            for table, num_rows in zip(cache.tables, cache.num_rows, strict=True):
                kept = sum(page != NULL_PAGE for page in table)
                total += max(kept * size - (len(table) * size - num_rows), 0)
        return total // len(self.layout.groups)

    def check_integrity(self) -> None:
        """Assert the pools' invariants and that references are those of the block tables."""
        self.pool.check_references([[*cache.tables, *cache.reserved] for cache in self._live])
        if self.quantized is not None:
            self.quantized.pool.check_references([c.quantized_tables for c in self._live])

    def _track(self, cache: SequenceCache) -> None:
        self._live[cache] = None
