"""The prefix cache: which pages of a text are there already, under keys chained from its start."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from infopt.cache.block_pool import NULL_PAGE, BlockPool
from infopt.cache.groups import KVLayout
from infopt.cache.hashing import KeyChain, PageKey, chain_key, root_key
from infopt.cache.quantized_pages import QuantizedPool, first_full_page
from infopt.cache.sequence_cache import SequenceCache


class PrefixCache:
    """Finds, shares and registers full pages.

    Args:
        layout: KV groups and page shape.
        pool: Full-precision pages.
        quantized: Pool of quantized pages; None keeps all rows in one form.
        identity: Everything that changes KV content (model, types); part of every key.
    """

    def __init__(
        self,
        layout: KVLayout,
        pool: BlockPool,
        quantized: QuantizedPool | None,
        identity: Mapping[str, object],
    ) -> None:
        """Start with nothing findable."""
        self._layout, self._pool, self._quantized = layout, pool, quantized
        self._old = quantized.layout if quantized is not None else None
        self._root = root_key({**identity, "block_size": layout.block_size})

    def match(self, tokens: Sequence[int]) -> list[PageKey]:
        """Return the keys of the longest cached prefix that leaves one token to compute.

        A full group needs every page of the prefix; a window group those that the next token sees.
        Where old rows are quantized, each page is needed in the form in which that token reads it.
        """
        chain, count = KeyChain(self._root, tokens, self._layout.block_size), 0
        while count < chain.limit and self._is_findable(chain, count):
            count += 1
        while count and not self._holds(chain, count):
            count -= 1
        return chain.first(count)

    def adopt(self, cache: SequenceCache, keys: list[PageKey]) -> None:
        """Share the pages of a matched prefix with an empty sequence."""
        num_tokens = len(keys) * self._layout.block_size
        for index, table in enumerate(cache.tables):
            first = self._first_full_page(index, num_tokens)
            table.clear()
            for position, key in enumerate(keys):
                page = self._pool.lookup((index, key)) if position >= first else NULL_PAGE
                assert page is not None
                if page != NULL_PAGE:
                    self._pool.share(page)
                table.append(page)
        cache.keys, cache.num_tokens = list(keys), num_tokens
        if self._quantized is not None:
            self._quantized.adopt(cache, keys, num_tokens)

    def num_pages_to_adopt(self, keys: list[PageKey]) -> int:
        """Return how many evictable pages :meth:`adopt` takes out of the available ones."""
        count = 0
        for index in range(len(self._layout.groups)):
            first = self._first_full_page(index, len(keys) * self._layout.block_size)
            for key in keys[first:]:
                page = self._pool.lookup((index, key))
                count += page is not None and self._pool.is_cached(page)
        return count

    def register(self, cache: SequenceCache, tokens: Sequence[int]) -> None:
        """Make the pages findable that have become full."""
        for position in range(len(cache.keys), cache.num_tokens // self._layout.block_size):
            self._add_key(cache, tokens)
            for index, table in enumerate(cache.tables):
                if table[position] != NULL_PAGE:
                    self._pool.register(table[position], (index, cache.keys[position]))

    def register_group(self, cache: SequenceCache, group: int, tokens: Sequence[int]) -> None:
        """Make the full pages of one group findable that no eviction has touched."""
        for position in range(cache.num_tokens // self._layout.block_size):
            if position == len(cache.keys):
                self._add_key(cache, tokens)
            self._pool.register(cache.tables[group][position], (group, cache.keys[position]))

    def _add_key(self, cache: SequenceCache, tokens: Sequence[int]) -> None:
        """Make the key of the first page of a sequence that has none."""
        size, position = self._layout.block_size, len(cache.keys)
        parent = cache.keys[-1] if cache.keys else self._root
        cache.keys.append(chain_key(parent, tokens[position * size : (position + 1) * size]))

    def _first_full_page(self, group: int, num_tokens: int) -> int:
        return first_full_page(self._layout, self._old, group, num_tokens)

    def _is_findable(self, chain: KeyChain, position: int) -> bool:
        """Whether all full groups hold a page of a prefix in some form."""
        return all(
            self._pool.lookup((index, chain[position])) is not None
            or (self._quantized is not None and self._quantized.is_findable(chain, index, position))
            for index, group in enumerate(self._layout.groups)
            if group.window is None
        )

    def _holds(self, chain: KeyChain, count: int) -> bool:
        """Whether what the token behind a prefix reads is there; full groups were looked through.

        Args:
            chain: Keys of the prompt.
            count: Pages of the prefix.
        """
        num_tokens = count * self._layout.block_size
        for index, group in enumerate(self._layout.groups):
            if group.window is None and self._quantized is None:
                continue
            first = self._first_full_page(index, num_tokens)
            pages = range(count - 1, first - 1, -1)
            if any(self._pool.lookup((index, chain[page])) is None for page in pages):
                return False
            if self._quantized is not None and not self._quantized.holds(chain, index, num_tokens):
                return False
        return True
