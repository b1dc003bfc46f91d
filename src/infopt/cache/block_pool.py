"""The page pool: reference counts, prefix-cache keys and least-recently-used eviction.

Every page is in exactly one state:

    free    no reference, no key        in ``_free``
    cached  no reference, has a key     in ``_cached`` (evictable, oldest first)
    used    referenced, maybe a key     in neither

Page 0 is the null page. It stands for positions that nobody reads and is never handed out.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Hashable

NULL_PAGE = 0


class BlockPool:
    """Hands out pages and remembers which hold reusable prefixes.

    Args:
        num_pages: Usable pages; ids run from 1 to ``num_pages``.
    """

    def __init__(self, num_pages: int) -> None:
        """All pages start free."""
        self.num_pages = num_pages
        self._free: deque[int] = deque(range(1, num_pages + 1))
        self._cached: OrderedDict[int, None] = OrderedDict()
        self._references: dict[int, int] = {}
        self._key_of: dict[int, Hashable] = {}
        self._page_of: dict[Hashable, int] = {}

    @property
    def num_free(self) -> int:
        """Pages with neither reference nor key."""
        return len(self._free)

    @property
    def num_cached(self) -> int:
        """Unreferenced pages that still hold a prefix."""
        return len(self._cached)

    @property
    def num_used(self) -> int:
        """Referenced pages."""
        return len(self._references)

    @property
    def num_available(self) -> int:
        """Pages that can be handed out: free ones and evictable ones."""
        return len(self._free) + len(self._cached)

    def allocate(self) -> int:
        """Return a page with one reference, evicting the oldest cached one if none is free.

        The caller has checked ``num_available``.
        """
        if self._free:
            page = self._free.popleft()
        else:
            page, _ = self._cached.popitem(last=False)
            self._forget(page)
        self._references[page] = 1
        return page

    def share(self, page: int) -> None:
        """Add a reference to a used or cached page."""
        if page in self._cached:
            del self._cached[page]
            self._references[page] = 1
        else:
            self._references[page] += 1

    def release(self, page: int) -> None:
        """Drop a reference; an unreferenced page becomes cached if it has a key, else free."""
        self._references[page] -= 1
        if self._references[page]:
            return
        del self._references[page]
        if page in self._key_of:
            self._cached[page] = None
        else:
            self._free.append(page)

    def release_last(self, pages: list[int], keep: int = 0) -> None:
        """Release pages from the end of a list until so many are left in it."""
        while len(pages) > keep:
            self.release(pages.pop())

    def register(self, page: int, key: Hashable) -> None:
        """Make a used, full page findable; the first page with a key keeps it."""
        if key not in self._page_of and page not in self._key_of:
            self._page_of[key] = page
            self._key_of[page] = key

    def lookup(self, key: Hashable) -> int | None:
        """Return the page with a key, or None."""
        return self._page_of.get(key)

    def has_key(self, page: int) -> bool:
        """Whether a page is findable as a prefix."""
        return page in self._key_of

    def is_cached(self, page: int) -> bool:
        """Whether a page is unreferenced and evictable."""
        return page in self._cached

    def reference_count(self, page: int) -> int:
        """Return how many sequences refer to a page."""
        return self._references.get(page, 0)

    def describe(self) -> dict[str, int]:
        """Return how many pages there are in each state."""
        return {
            "total": self.num_pages,
            "used": self.num_used,
            "cached": self.num_cached,
            "free": self.num_free,
        }

    def clear_cache(self) -> None:
        """Forget all prefixes; pages in use stay in use."""
        for page in list(self._key_of):
            self._forget(page)
        self._free.extend(self._cached)
        self._cached.clear()

    def check_integrity(self) -> None:
        """Assert that every page is in one state and that keys and pages match."""
        free, cached, used = set(self._free), set(self._cached), set(self._references)
        assert len(free) == len(self._free), "a page is free twice"
        assert not (free & cached or free & used or cached & used), "a page is in two states"
        assert len(free) + len(cached) + len(used) == self.num_pages, "a page is lost"
        assert free | cached | used == set(range(1, self.num_pages + 1)), "a page id is unknown"
        assert all(count > 0 for count in self._references.values()), "a count is not positive"
        assert cached <= set(self._key_of), "a cached page has no key"
        assert not free & set(self._key_of), "a free page has a key"
        assert {key: page for page, key in self._key_of.items()} == self._page_of, "keys differ"

    def check_references(self, all_tables: list[list[list[int]]]) -> None:
        """Assert the same, and that references are those of the block tables of sequences."""
        self.check_integrity()
        counts: dict[int, int] = {}
        for page in (page for tables in all_tables for table in tables for page in table):
            if page != NULL_PAGE:
                counts[page] = counts.get(page, 0) + 1
        assert len(counts) == self.num_used, "a referenced page is in no block table"
        for page, count in counts.items():
            assert self.reference_count(page) == count, f"page {page}: count differs"

    def _forget(self, page: int) -> None:
        del self._page_of[self._key_of.pop(page)]
