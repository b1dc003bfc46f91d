"""Host memory of sequences that were swapped out: its pages, and who may count on them.

Rows cannot be computed again as they were once others that they were computed over are gone. So a
sequence that loses its pages after an eviction must be swapped, and host memory for what it may
then hold is set aside when it is admitted. Before its first eviction it can be computed again like
any other.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

from infopt.cache.block_pool import NULL_PAGE
from infopt.cache.manager import CacheManager
from infopt.cache.page_needs import need_to_restore
from infopt.cache.quantized_pages import PageNeed
from infopt.engine.eviction_room import host_pages_for
from infopt.engine.sequence import Sequence
from infopt.engine.step_plan import StepPlan

HostTables = list[list[int]]
"""Per KV group, host pages by place in the block table; negative where there was no page."""


class HostPages:
    """Hands out host pages of one form.

    Args:
        num_pages: How many there are.
    """

    def __init__(self, num_pages: int) -> None:
        """All are free."""
        self.num_pages = num_pages
        self.free: deque[int] = deque(range(num_pages))

    def take(self, tables: list[list[int]], moves: list[tuple[int, int]]) -> HostTables:
        """Return a host page for each page of block tables; the caller has checked that they fit.

        Args:
            tables: Block tables of a sequence.
            moves: Gets the ``(page, host page)`` copies to make.
        """
        taken = []
        for table in tables:
            hosts = []
            for page in table:
                host = NULL_PAGE - 1 if page == NULL_PAGE else self.free.popleft()
                hosts.append(host)
                if page != NULL_PAGE:
                    moves.append((page, host))
            taken.append(hosts)
        return taken

    def give_back(self, tables: HostTables | None) -> None:
        """Take host pages back."""
        self.free.extend(_used_pages(tables))

    def check_integrity(self, all_tables: list[HostTables | None]) -> None:
        """Assert that each host page is free or in one table."""
        hosts = [host for tables in all_tables for host in _used_pages(tables)]
        assert len(set(hosts)) == len(hosts), "a host page is shared"
        assert len(self.free) + len(hosts) == self.num_pages, "a host page is lost"


class SwapSpace:
    """Host pages of both forms; moves sequences out and back.

    Args:
        cache: Pages on the device.
        num_pages: Host pages.
    """

    def __init__(self, cache: CacheManager, num_pages: PageNeed) -> None:
        """Start with all pages free and nothing set aside."""
        self._cache = cache
        self.full, self.quantized = HostPages(num_pages.full), HostPages(num_pages.quantized)
        self._set_aside: dict[Sequence, PageNeed] = {}

    def enter(self, sequence: Sequence) -> bool:
        """Set room aside for a sequence that is to be admitted; False if it must wait.

        Sequences that keep all their rows need none.
        """
        if sequence.eviction is None or sequence in self._set_aside:
            return True
        num_tokens = sequence.num_prompt_tokens + sequence.max_tokens
        needed = host_pages_for(sequence.eviction, self._cache, num_tokens)
        left = self._left_for(sequence)
        if needed.full > left.full or needed.quantized > left.quantized:
            return False
        self._set_aside[sequence] = needed
        return True

    def leave(self, sequence: Sequence) -> None:
        """Give back all that a sequence has here, and what was set aside for it."""
        self.release(sequence)
        self._set_aside.pop(sequence, None)

    def swap_out(self, victim: Sequence, plan: StepPlan) -> bool:
        """Plan the copies of a victim's pages to the host; False if there is no room."""
        cache, room = victim.cache, self._left_for(victim)
        if cache.num_pages > room.full or not cache.num_tokens:
            return False
        if cache.num_quantized_pages > room.quantized:
            return False
        victim.host_pages = self.full.take(cache.tables, plan.swap_out)
        victim.host_quantized = self.quantized.take(cache.written_tables, plan.swap_out_quantized)
        return True

    def need_to_return(self, sequence: Sequence, num_tokens: int) -> PageNeed:
        """Return the pages with which a sequence comes back and has ``num_tokens`` stored."""
        hosts, quantized = self._tables_of(sequence)
        rows = [num_tokens - evicted for evicted in sequence.cache.num_evicted]
        return need_to_restore(self._cache, hosts, quantized, rows)

    def swap_in(self, sequence: Sequence, plan: StepPlan) -> None:
        """Plan the copies back to the device; the caller has checked that the pages fit."""
        cache, (hosts, quantized) = sequence.cache, self._tables_of(sequence)
        plan.swap_in.extend(self._cache.restore(cache, hosts, cache.num_tokens))
        plan.swap_in_quantized.extend(self._cache.restore_quantized(cache, quantized))
        self.release(sequence)

    def release(self, sequence: Sequence) -> None:
        """Give back a sequence's host pages; what was set aside for it stays so."""
        self.full.give_back(sequence.host_pages)
        self.quantized.give_back(sequence.host_quantized)
        sequence.host_pages = sequence.host_quantized = None

    def check_integrity(self, waiting: Iterable[Sequence]) -> None:
        """Assert that each page is free or of one waiting sequence, and no room is left over."""
        waiting = list(waiting)
        self.full.check_integrity([s.host_pages for s in waiting])
        self.quantized.check_integrity([s.host_quantized for s in waiting])
        assert not any(s.is_finished for s in self._set_aside), "an ended one keeps room"

    def _left_for(self, sequence: Sequence) -> PageNeed:
        """Return the free host pages that a sequence may take."""
        full, quantized = len(self.full.free), len(self.quantized.free)
        for other, pages in self._set_aside.items():
            if other is not sequence:
                full -= max(pages.full - len(_used_pages(other.host_pages)), 0)
                quantized -= max(pages.quantized - len(_used_pages(other.host_quantized)), 0)
        return PageNeed(full, quantized)

    def _tables_of(self, sequence: Sequence) -> tuple[HostTables, HostTables]:
        assert sequence.host_pages is not None and sequence.host_quantized is not None
        return sequence.host_pages, sequence.host_quantized


def _used_pages(tables: HostTables | None) -> list[int]:
    """Return all host pages of tables."""
    return [host for hosts in tables or [] for host in hosts if host >= 0]
