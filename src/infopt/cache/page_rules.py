"""How many pages rows take, and how many sequences a pool holds.

A pool hands out whole pages, so a sequence takes ``ceil(rows / page)`` of them in each KV group, on
average half a page more than it needs.
"""

from __future__ import annotations

from dataclasses import dataclass

from infopt.cache.memory_model import QuantizedForm


@dataclass(frozen=True, slots=True)
class PageCount:
    """Pages of both forms.

    Attributes:
        full: Pages in the compute type.
        quantized: Quantized pages.
    """

    full: int
    quantized: int = 0

    def __add__(self, other: PageCount) -> PageCount:
        """Add both kinds."""
        return PageCount(self.full + other.full, self.quantized + other.quantized)


@dataclass(frozen=True, slots=True)
class PageRules:
    """How rows become pages.

    Attributes:
        block_size: Rows per page.
        num_groups: KV groups, each with pages of its own.
        page_bytes: A page in the compute type.
        quantized: Form of old rows; None keeps all in the compute type.
        quantized_page_bytes: A quantized page, which holds ``quantized.group_size`` rows.
    """

    block_size: int
    num_groups: int
    page_bytes: int
    quantized: QuantizedForm | None = None
    quantized_page_bytes: int = 0

    def pages(self, num_rows: int, chunk: int = 0) -> PageCount:
        """Return the pages of a sequence that holds so many rows in each group.

        Whole pages are dropped when all of their rows lie ``residual`` rows behind the last page
        border; the rows in them are read quantized from then on.

        Args:
            num_rows: Rows.
            chunk: Of those, the newest that are still being computed in this step.
        """
        total = -(-num_rows // self.block_size)
        if self.quantized is None:
            return PageCount(total * self.num_groups)
        dropped = self._num_readable(max(num_rows - chunk, 0))
        rows = self._num_readable(num_rows - 1 if chunk else num_rows) * self.block_size
        quantized = -(-rows // self.quantized.group_size)
        return PageCount((total - dropped) * self.num_groups, quantized * self.num_groups)

    def _num_readable(self, row: int) -> int:
        """Return how many leading pages the query in a row reads quantized."""
        assert self.quantized is not None
        border = row // self.block_size * self.block_size
        return max((border - self.quantized.residual + 1) // self.block_size, 0)

    def num_bytes(self, pages: PageCount) -> int:
        """Return the bytes of so many pages."""
        return pages.full * self.page_bytes + pages.quantized * self.quantized_page_bytes

    def bytes_per_token(self, num_tokens: int, num_rows: int) -> float:
        """Return pool bytes per token of a sequence of which so many rows are kept."""
        return self.num_bytes(self.pages(num_rows)) / num_tokens

    def waste(self, num_rows: int) -> float:
        """Return the share of a sequence's slots that hold no row."""
        slots = -(-num_rows // self.block_size) * self.block_size
        return 1 - num_rows / slots


def num_sequences(pool: PageCount, resident: PageCount, peak: PageCount | None = None) -> int:
    """Return how many equal sequences a pool holds at once.

    Args:
        pool: Pages in the pool.
        resident: Pages of a sequence that is there to stay.
        peak: Pages of the one that has just come and is largest then (its prompt before rows are
            evicted or quantized); None: it takes no more than the others.
    """
    return min(
        _that_fit(getattr(pool, form), getattr(resident, form), getattr(peak or resident, form))
        for form in ("full", "quantized")
        if getattr(resident, form) or getattr(peak or resident, form)
    )


def _that_fit(pool: int, resident: int, peak: int) -> int:
    """Return the largest n with ``(n - 1) * resident + max(resident, peak) <= pool``."""
    first = max(resident, peak)
    if first > pool:
        return 0
    return 1 + (pool - first) // resident if resident else pool // first
