"""Block tables of sequences over the page pool, one per KV group."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from infopt.cache.block_pool import NULL_PAGE, BlockPool
from infopt.cache.groups import KVLayout
from infopt.cache.hashing import PageKey, chain_key, root_key


@dataclass(slots=True, eq=False)
class SequenceCache:
    """Where the tokens of one sequence are kept.

    Attributes:
        tables: Per group, page ids by position // block_size; ``NULL_PAGE`` where the group has
            let go of a page behind its window.
        keys: Chained keys of the full pages so far.
        num_tokens: Tokens whose keys and values are stored.
    """

    tables: list[list[int]]
    keys: list[PageKey] = field(default_factory=list)
    num_tokens: int = 0

    @property
    def num_pages(self) -> int:
        """Pages referred to."""
        return sum(page != NULL_PAGE for table in self.tables for page in table)


class CacheManager:
    """Allocates, shares, registers and frees the pages of sequences.

    Args:
        layout: KV groups and page shape.
        num_pages: Pages in the pool.
        identity: Everything that changes KV content (model, types); part of every key.
        enable_prefix_caching: Whether full pages become findable.
    """

    def __init__(
        self,
        layout: KVLayout,
        num_pages: int,
        identity: Mapping[str, object],
        enable_prefix_caching: bool = True,
    ) -> None:
        """Start with an empty pool."""
        self.layout = layout
        self.pool = BlockPool(num_pages)
        self.enable_prefix_caching = enable_prefix_caching
        self._root = root_key({**identity, "block_size": layout.block_size})
        self._live: dict[SequenceCache, None] = {}

    def new_sequence(self) -> SequenceCache:
        """Return an empty block table."""
        return SequenceCache(tables=[[] for _ in self.layout.groups])

    def match_prefix(self, tokens: Sequence[int]) -> list[PageKey]:
        """Return the keys of the longest cached prefix that leaves one token to compute.

        A full group needs every page of the prefix; a window group those that the next token sees.
        """
        if not self.enable_prefix_caching:
            return []
        keys: list[PageKey] = []
        parent, size = self._root, self.layout.block_size
        has_full_group = any(group.window is None for group in self.layout.groups)
        for start in range(0, (len(tokens) - 1) // size * size, size):
            parent = chain_key(parent, tokens[start : start + size])
            if has_full_group and not self._in_all_full_groups(parent):
                break
            keys.append(parent)
        while keys and not self._windows_hold(keys):
            keys.pop()
        return keys

    def adopt_prefix(self, cache: SequenceCache, keys: list[PageKey]) -> int:
        """Share the pages of a matched prefix with an empty sequence.

        Returns:
            The number of tokens found.
        """
        assert not cache.num_tokens and not cache.num_pages
        for index, table in enumerate(cache.tables):
            first = self._first_visible_page(index, len(keys) * self.layout.block_size)
            table.clear()
            for position, key in enumerate(keys):
                page = self.pool.lookup((index, key)) if position >= first else NULL_PAGE
                assert page is not None
                if page != NULL_PAGE:
                    self.pool.share(page)
                table.append(page)
        cache.keys = list(keys)
        cache.num_tokens = len(keys) * self.layout.block_size
        self._track(cache)
        return cache.num_tokens

    def num_pages_to_adopt(self, keys: list[PageKey]) -> int:
        """Return how many evictable pages a matched prefix takes out of the available ones."""
        count = 0
        for index in range(len(self.layout.groups)):
            first = self._first_visible_page(index, len(keys) * self.layout.block_size)
            for key in keys[first:]:
                page = self.pool.lookup((index, key))
                count += page is not None and self.pool.is_cached(page)
        return count

    def num_new_pages(self, cache: SequenceCache, num_tokens: int) -> int:
        """Return the pages missing to store ``num_tokens`` tokens in all."""
        needed = -(-num_tokens // self.layout.block_size)
        return sum(max(needed - len(table), 0) for table in cache.tables)

    def allocate(self, cache: SequenceCache, num_tokens: int) -> bool:
        """Make room for ``num_tokens`` tokens in all; False (and no change) if there is none."""
        if self.num_new_pages(cache, num_tokens) > self.pool.num_available:
            return False
        needed = -(-num_tokens // self.layout.block_size)
        for table in cache.tables:
            table.extend(self.pool.allocate() for _ in range(needed - len(table)))
        self._track(cache)
        return True

    def commit(self, cache: SequenceCache, tokens: Sequence[int], num_tokens: int) -> None:
        """Note that the first ``num_tokens`` of ``tokens`` are stored.

        Full pages become findable; pages behind a group's window go back to the pool, and so do
        pages behind the last stored token (there are some where drafted tokens were rejected).
        """
        cache.num_tokens = num_tokens
        needed = -(-num_tokens // self.layout.block_size)
        for table in cache.tables:
            while len(table) > needed:
                self.pool.release(table.pop())
        if self.enable_prefix_caching:
            self._register(cache, tokens)
        for index, table in enumerate(cache.tables):
            for position in range(self._first_visible_page(index, num_tokens) - 1, -1, -1):
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
        cache.keys, cache.num_tokens = [], 0
        self._live.pop(cache, None)

    def restore(
        self, cache: SequenceCache, host_tables: list[list[int]], num_tokens: int
    ) -> list[tuple[int, int]]:
        """Give a swapped-out sequence pages again.

        Args:
            cache: Its empty block table.
            host_tables: Per group, host pages by position (negative where there was none).
            num_tokens: Tokens stored in them.

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

    def reset_prefix_cache(self) -> None:
        """Forget all cached prefixes."""
        self.pool.clear_cache()

    def num_stored_tokens(self) -> int:
        """Return the tokens kept in referenced pages, per group on average.

        A page that several sequences share is counted once for each of them.
        """
        size, total = self.layout.block_size, 0
        for cache in self._live:
            for table in cache.tables:
                kept = sum(page != NULL_PAGE for page in table)
                total += max(kept * size - (len(table) * size - cache.num_tokens), 0)
        return total // len(self.layout.groups)

    def check_integrity(self) -> None:
        """Assert the pool's invariants and that references are those of the block tables."""
        self.pool.check_integrity()
        counts: dict[int, int] = {}
        for cache in self._live:
            for page in (page for table in cache.tables for page in table if page != NULL_PAGE):
                counts[page] = counts.get(page, 0) + 1
        assert len(counts) == self.pool.num_used, "a referenced page is in no block table"
        for page, count in counts.items():
            assert self.pool.reference_count(page) == count, f"page {page}: count differs"

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

    def _first_visible_page(self, group: int, num_tokens: int) -> int:
        """Return the first page that the token at position ``num_tokens`` still sees."""
        window = self.layout.groups[group].window
        if window is None:
            return 0
        return max(num_tokens - window + 1, 0) // self.layout.block_size

    def _in_all_full_groups(self, key: PageKey) -> bool:
        return all(
            self.pool.lookup((index, key)) is not None
            for index, group in enumerate(self.layout.groups)
            if group.window is None
        )

    def _windows_hold(self, keys: list[PageKey]) -> bool:
        for index, group in enumerate(self.layout.groups):
            if group.window is None:
                continue
            first = self._first_visible_page(index, len(keys) * self.layout.block_size)
            if any(self.pool.lookup((index, key)) is None for key in keys[first:]):
                return False
        return True
