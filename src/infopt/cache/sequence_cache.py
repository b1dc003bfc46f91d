"""Block tables of one sequence, one per KV group."""

from __future__ import annotations

from dataclasses import dataclass, field

from infopt.cache.block_pool import NULL_PAGE
from infopt.cache.hashing import PageKey


@dataclass(slots=True, eq=False)
class SequenceCache:
    """Where the tokens of one sequence are kept.

    Attributes:
        tables: Per group, page ids by row // block_size; ``NULL_PAGE`` where the group has let go
            of a page behind its window. A token's row is its position, less the rows evicted.
        keys: Chained keys of the full pages so far.
        num_tokens: Tokens in the past: the position of the next one. Where nothing was evicted, so
            many rows are stored.
        quantized_tables: Per group, quantized pages by row // group_size; ``tables`` has
            ``NULL_PAGE`` where a page is read in this form alone.
        num_quantized: Per group, quantized pages that are written.
        num_findable: Per group, quantized pages that were given their key.
        num_evicted: Per group, rows that were evicted.
        reserved: Per group, pages held for an eviction that may need more than it frees.
    """

    tables: list[list[int]]
    keys: list[PageKey] = field(default_factory=list)
    num_tokens: int = 0
    quantized_tables: list[list[int]] = field(default_factory=list)
    num_quantized: list[int] = field(default_factory=list)
    num_findable: list[int] = field(default_factory=list)
    num_evicted: list[int] = field(default_factory=list)
    reserved: list[list[int]] = field(default_factory=list)

    def __post_init__(self) -> None:
        """Start with nothing evicted."""
        self.num_evicted = self.num_evicted or [0] * len(self.tables)
        self.reserved = self.reserved or [[] for _ in self.tables]

    @property
    def num_rows(self) -> list[int]:
        """Per group, rows that the tables hold."""
        return [self.num_tokens - evicted for evicted in self.num_evicted]

    @property
    def is_evicted(self) -> bool:
        """Whether any rows were evicted."""
        return any(self.num_evicted)

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
