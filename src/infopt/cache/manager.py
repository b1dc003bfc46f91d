"""Allocates the pages of sequences: block tables over the page pool, one per KV group."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from infopt.cache.block_pool import NULL_PAGE, BlockPool
from infopt.cache.compaction import KeptRows, QuantizedMove, RowMove, writable_pages
from infopt.cache.groups import KVLayout
from infopt.cache.hashing import KeyChain, PageKey, chain_key, root_key
from infopt.cache.quantized_pages import PageNeed, QuantizedPool
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
        self.enable_prefix_caching = enable_prefix_caching
        self._root = root_key({**identity, "block_size": layout.block_size})
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
        if not self.enable_prefix_caching:
            return []
        chain, count = KeyChain(self._root, tokens, self.layout.block_size), 0
        while count < chain.limit and self._is_findable(chain, count):
            count += 1
        while count and not self._holds(chain, count):
            count -= 1
        return chain.first(count)

    def adopt_prefix(self, cache: SequenceCache, keys: list[PageKey]) -> int:
        """Share the pages of a matched prefix with an empty sequence.

        Returns:
            The number of tokens found.
        """
        assert not cache.num_tokens and not cache.num_pages
        for index, table in enumerate(cache.tables):
            first = self._first_kept_page(index, len(keys) * self.layout.block_size)
            table.clear()
            for position, key in enumerate(keys):
                page = self.pool.lookup((index, key)) if position >= first else NULL_PAGE
                assert page is not None
                if page != NULL_PAGE:
                    self.pool.share(page)
                table.append(page)
        cache.keys = list(keys)
        cache.num_tokens = len(keys) * self.layout.block_size
        if self.quantized is not None:
            self.quantized.adopt(cache, keys, cache.num_tokens)
        self._track(cache)
        return cache.num_tokens

    def num_pages_to_adopt(self, keys: list[PageKey]) -> int:
        """Return how many evictable pages a matched prefix takes out of the available ones."""
        count = 0
        for index in range(len(self.layout.groups)):
            first = self._first_kept_page(index, len(keys) * self.layout.block_size)
            for key in keys[first:]:
                page = self.pool.lookup((index, key))
                count += page is not None and self.pool.is_cached(page)
        return count

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
        if self.enable_prefix_caching and not will_evict:
            self._register(cache, tokens)
        if self.quantized is not None:
            has_keys = self.enable_prefix_caching and not will_evict
            self.quantized.commit(cache, num_tokens, has_keys)
        for index, table in enumerate(cache.tables):
            row = num_tokens - cache.num_evicted[index]
            for position in range(self._first_kept_page(index, row) - 1, -1, -1):
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
            self._release(reserved)
        cache.keys, cache.num_tokens = [], 0
        cache.num_evicted = [0] * len(cache.tables)
        self._live.pop(cache, None)

    def reserve(self, cache: SequenceCache, num_rows: Sequence[int]) -> None:
        """Hold the pages that evictions from a sequence need because it shares pages.

        Args:
            cache: A sequence that has just adopted a prefix.
            num_rows: Per group, most rows that an eviction leaves (0 where nothing is evicted).
        """
        needed = self.num_to_reserve(len(cache.keys), num_rows)
        for group, count in enumerate(needed):
            cache.reserved[group] = [self.pool.allocate() for _ in range(count)]

    def num_to_reserve(self, num_adopted: int, num_rows: Sequence[int]) -> list[int]:
        """Return the pages that :meth:`reserve` takes, per group, for so many adopted pages.

        Beside quantized pages nothing is adopted, but rows that end within a page may take one more
        than as many that end with one.
        """
        if self.quantized is not None:
            return [int(rows > 0) for rows in num_rows]
        return [min(num_adopted, -(-rows // self.layout.block_size)) for rows in num_rows]

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
        if self.quantized is not None:
            return self._compact_both(cache, group, kept)
        table, size = cache.tables[group], self.layout.block_size
        first, last = kept.num_unmoved // size, -(-kept.num_rows // size)
        old, reserved = list(table), cache.reserved[group]
        replaced_from = self._first_to_replace(cache, group, first, last)
        if replaced_from is not None:
            self._register_before_eviction(cache, group, tokens)
            first = replaced_from
            new = [self.pool.allocate() for _ in range(first, last)]
        else:
            new = [
                page if is_own else reserved.pop()
                for page, is_own in writable_pages(self.pool, old[first:last])
            ]
        cache.num_evicted[group] += cache.num_rows[group] - kept.num_rows
        table[first:] = new
        for page in reversed(old[first:]):
            if page not in new:
                self.pool.release(page)
        shared = sum(not is_own for _, is_own in writable_pages(self.pool, table))
        self._release(reserved, keep=shared)
        return RowMove(kept, old, list(table), first * size)

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

    def _register(self, cache: SequenceCache, tokens: Sequence[int]) -> None:
        size = self.layout.block_size
        for position in range(len(cache.keys), cache.num_tokens // size):
            parent = cache.keys[-1] if cache.keys else self._root
            key = chain_key(parent, tokens[position * size : (position + 1) * size])
            cache.keys.append(key)
            for index, table in enumerate(cache.tables):
                if table[position] != NULL_PAGE:
                    self.pool.register(table[position], (index, key))

    def _compact_both(self, cache: SequenceCache, group: int, kept: KeptRows) -> RowMove:
        """Keep some rows in pages of both forms; nobody else has these pages."""
        assert self.quantized is not None
        table, layout = cache.tables[group], self.quantized.layout
        num_rows, old = cache.num_rows[group], list(table)
        read, sources = layout.num_readable(group, num_rows), list(cache.quantized_tables[group])
        first = layout.num_readable(group, kept.num_rows)
        count = -(-kept.num_rows // self.layout.block_size) - first
        spare = [page for page in old if page != NULL_PAGE]
        new = [(spare or cache.reserved[group]).pop() for _ in range(count)]
        table[:] = [NULL_PAGE] * first + new
        self._release(spare)
        self._release(cache.reserved[group])
        cache.num_evicted[group] += num_rows - kept.num_rows
        targets, size = self.quantized.compact(cache, group, kept.num_rows), self.layout.block_size
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
        if not self.enable_prefix_caching or cache.num_evicted[group]:
            return None
        if not all(self.pool.has_key(page) for page in cache.tables[group][:first]):
            first = 0  # a page of its own that stays would be findable, and never written to again
        return first if last - first <= self.pool.num_free else None

    def _register_before_eviction(
        self, cache: SequenceCache, group: int, tokens: Sequence[int]
    ) -> None:
        """Make the full pages of a group findable that no eviction has touched."""
        size, table = self.layout.block_size, cache.tables[group]
        for position in range(cache.num_tokens // size):
            if position == len(cache.keys):
                parent = cache.keys[-1] if cache.keys else self._root
                chunk = tokens[position * size : (position + 1) * size]
                cache.keys.append(chain_key(parent, chunk))
            self.pool.register(table[position], (group, cache.keys[position]))

    def _release(self, pages: list[int], keep: int = 0) -> None:
        """Give pages of a list back until so many are left."""
        while len(pages) > keep:
            self.pool.release(pages.pop())

    def _first_visible_page(self, group: int, num_tokens: int) -> int:
        """Return the first page that the token at position ``num_tokens`` still sees."""
        window = self.layout.groups[group].window
        if window is None:
            return 0
        return max(num_tokens - window + 1, 0) // self.layout.block_size

    def _first_kept_page(self, group: int, num_tokens: int) -> int:
        """Return the first page that the token at position ``num_tokens`` reads in this form."""
        first = self._first_visible_page(group, num_tokens)
        if self.quantized is None:
            return first
        return max(first, self.quantized.layout.num_readable(group, num_tokens))

    def _is_findable(self, chain: KeyChain, position: int) -> bool:
        """Whether all full groups hold a page of a prefix in some form."""
        return all(
            self.pool.lookup((index, chain[position])) is not None
            or (self.quantized is not None and self.quantized.is_findable(chain, index, position))
            for index, group in enumerate(self.layout.groups)
            if group.window is None
        )

    def _holds(self, chain: KeyChain, count: int) -> bool:
        """Whether what the token behind a prefix reads is there; full groups were looked through.

        Args:
            chain: Keys of the prompt.
            count: Pages of the prefix.
        """
        num_tokens = count * self.layout.block_size
        for index, group in enumerate(self.layout.groups):
            if group.window is None and self.quantized is None:
                continue
            first = self._first_kept_page(index, num_tokens)
            pages = range(count - 1, first - 1, -1)
            if any(self.pool.lookup((index, chain[page])) is None for page in pages):
                return False
            if self.quantized is not None and not self.quantized.holds(chain, index, num_tokens):
                return False
        return True
