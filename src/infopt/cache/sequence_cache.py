"""Block tables of one sequence, one per KV group."""

from __future__ import annotations

from dataclasses import dataclass, field

from infopt.cache.block_pool import NULL_PAGE
from infopt.cache.hashing import PageKey


@dataclass(slots=True, eq=False)
class SequenceCache:
    """Where the tokens of one sequence are kept.

    Attributes:
        tables: Per group, page ids by position // block_size; ``NULL_PAGE`` where the group has
            let go of a page behind its window.
        keys: Chained keys of the full pages so far.
        num_tokens: Tokens whose keys and values are stored.
        quantized_tables: Per group, quantized pages by position // group_size; ``tables`` has
            ``NULL_PAGE`` where a page is read in this form alone.
        num_quantized: Per group, quantized pages that are written.
        num_findable: Per group, quantized pages that were given their key.
    """

    tables: list[list[int]]
    keys: list[PageKey] = field(default_factory=list)
    num_tokens: int = 0
    quantized_tables: list[list[int]] = field(default_factory=list)
    num_quantized: list[int] = field(default_factory=list)
    num_findable: list[int] = field(default_factory=list)

    @property
    def num_pages(self) -> int:
        """Full-precision pages referred to."""
        return _num_pages(self.tables)

    @property
    def num_quantized_pages(self) -> int:
        """Quantized pages referred to."""
        return _num_pages(self.quantized_tables)

    @property
    def written_tables(self) -> list[list[int]]:
        """Quantized tables without pages that are allocated for a step to come."""
        pairs = zip(self.quantized_tables, self.num_quantized, strict=True)
        return [table[:count] for table, count in pairs]


def _num_pages(tables: list[list[int]]) -> int:
    return sum(page != NULL_PAGE for table in tables for page in table)
