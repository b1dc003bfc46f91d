"""State of sequences that does not come in one entry per token, and so lies in no pages.

Compressed and recurrent states belong to one sequence each and grow as their family wants. The
page pool still counts them, by what a token takes at most, so that admission, preemption and
limits work as ever; a sequence's first page is the name of its state.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from infopt.cache.groups import KVLayout
from infopt.cache.manager import CacheManager, SequenceCache


class StateStore:
    """States by the first page of their sequence; stands where page memory does.

    Attributes:
        layout: How pages are counted.
        states: Live states.
    """

    def __init__(self, layout: KVLayout, num_pages: int) -> None:
        """Start without any."""
        self.layout, self.quantized = layout, None
        self.num_pages = num_pages
        self.states: dict[int, Any] = {}

    @property
    def num_bytes(self) -> int:
        """Most bytes that the counted pages stand for; nothing is allocated beforehand."""
        return self.num_pages * self.layout.page_bytes

    def layer_pages(self, num_layers: int) -> dict[int, Any]:
        """Return the states: they hold all layers."""
        del num_layers
        return self.states

    def swap_out(self, moves: list[tuple[int, int]]) -> None:
        """States are never swapped (the loader has refused it)."""
        assert not moves

    def swap_in(self, moves: list[tuple[int, int]]) -> None:
        """States are never swapped (the loader has refused it)."""
        assert not moves


class StateManager(CacheManager):
    """Counts pages, shares none, and lets go of a state with the pages of its sequence.

    Args:
        layout: One group that keeps everything.
        num_pages: Pages in the pool.
        identity: Unused by a manager without prefix cache.
        store: The states.
    """

    def __init__(
        self,
        layout: KVLayout,
        num_pages: int,
        identity: Mapping[str, object],
        store: StateStore,
    ) -> None:
        """Start with an empty pool."""
        assert len(layout.groups) == 1 and layout.groups[0].window is None
        super().__init__(layout, num_pages, identity, enable_prefix_caching=False)
        self._store = store

    def free(self, cache: SequenceCache) -> None:
        """Give all pages back, and the state."""
        if cache.tables[0]:
            self._store.states.pop(cache.tables[0][0], None)
        super().free(cache)
