"""Host pages of sequences that were swapped out, for pages of one form."""

from __future__ import annotations

from collections import deque

from infopt.cache.block_pool import NULL_PAGE

HostTables = list[list[int]]
"""Per KV group, host pages by place in the block table; negative where there was no page."""


class HostPages:
    """Hands out host pages.

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
        self.free.extend(used_pages(tables))

    def check_integrity(self, all_tables: list[HostTables | None]) -> None:
        """Assert that each host page is free or in one table."""
        hosts = [host for tables in all_tables for host in used_pages(tables)]
        assert len(set(hosts)) == len(hosts), "a host page is shared"
        assert len(self.free) + len(hosts) == self.num_pages, "a host page is lost"


def used_pages(tables: HostTables | None) -> list[int]:
    """Return all host pages of tables."""
    return [host for hosts in tables or [] for host in hosts if host >= 0]
