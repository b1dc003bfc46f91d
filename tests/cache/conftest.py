"""Layouts and a manager whose pages remember what was written into them."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
import torch

from infopt.cache.block_pool import NULL_PAGE
from infopt.cache.compaction import KeptRows
from infopt.cache.groups import KVGroup, KVLayout
from infopt.cache.manager import CacheManager, SequenceCache
from infopt.cache.quantized_pages import QuantizedLayout, QuantizedPool, row_group_jobs
from infopt.ops.kv_quantization import KVFormat


def make_layout(*windows: int | None, block_size: int = 4) -> KVLayout:
    """One layer per group; a window or None (full attention) for each."""
    groups = tuple(KVGroup((layer,), window) for layer, window in enumerate(windows))
    return KVLayout(
        groups=groups,
        layers_per_group=1,
        block_size=block_size,
        num_kv_heads=1,
        head_dim=1,
        bytes_per_value=4,
    )


class ShadowCache:
    """A cache manager with the contents of its pages beside it.

    A slot holds ``(group, all tokens up to its position)``: keys and values depend on the whole
    prefix, so a page that is reused for anything else is found out. A quantized page holds
    ``(group, all tokens up to its last row)``.
    """

    def __init__(
        self,
        *windows: int | None,
        num_pages: int = 64,
        block_size: int = 4,
        enable_prefix_caching: bool = True,
        kv_format: KVFormat | None = None,
        num_quantized: int = 64,
    ) -> None:
        layout = make_layout(*(windows or (None,)), block_size=block_size)
        self.old = QuantizedLayout(layout, kv_format) if kv_format else None
        self.manager = CacheManager(
            layout,
            num_pages,
            {"model": "m"},
            enable_prefix_caching=enable_prefix_caching,
            quantized=QuantizedPool(self.old, num_quantized) if self.old else None,
        )
        self.block_size = block_size
        self.quantized: dict[int, object] = {}
        self.slots: dict[tuple[int, int], object] = {}
        self.kept: dict[tuple[SequenceCache, int], list[int]] = {}
        self.host: dict[tuple[int, int], object] = {}

    @property
    def pool(self):
        return self.manager.pool

    def positions(self, cache: SequenceCache, group: int) -> list[int]:
        """Return the position of each row: those that evictions kept, and those after them."""
        if not cache.num_evicted[group]:
            return list(range(cache.num_tokens))
        kept = self.kept[cache, group]
        return [*kept, *range(len(kept) + cache.num_evicted[group], cache.num_tokens)]

    def evict(
        self, cache: SequenceCache, group: int, rows: Sequence[int], tokens: Sequence[int]
    ) -> None:
        """Keep some rows of a group, and move what is in them as a page store does."""
        kept = KeptRows(torch.tensor(rows).view(1, 1, -1))
        positions = [self.positions(cache, group)[row] for row in rows]
        move = self.manager.compact(cache, group, kept, tokens)
        self.kept[cache, group] = positions
        size, start = self.block_size, move.start
        assert start <= kept.num_unmoved
        found = [self.slots[move.sources[r // size], r % size] for r in rows[start:]]
        for row, value in enumerate(found, start=start):
            page = move.targets[row // size]
            assert self.pool.reference_count(page) == 1, "a shared page is written"
            assert not self.pool.has_key(page), "a findable page is written"
            self.slots[page, row % size] = value

    def store(
        self,
        cache: SequenceCache,
        tokens: Sequence[int],
        num_tokens: int,
        num_kept: int | None = None,
        *,
        will_evict: bool = False,
    ) -> bool:
        """Allocate, write and commit the tokens up to ``num_tokens``; False if there is no room.

        Those behind ``num_kept`` were guesses that turned out wrong.
        """
        start = cache.num_tokens
        if not self.manager.allocate(cache, num_tokens):
            return False
        for position in range(start, num_tokens):
            for group, table in enumerate(cache.tables):
                row = position - cache.num_evicted[group]
                page = table[row // self.block_size]
                assert page != NULL_PAGE, "a token is written to the null page"
                assert self.pool.reference_count(page) == 1, "a shared page is written"
                self.slots[page, row % self.block_size] = (group, (*tokens[: position + 1],))
        self._quantize(cache, tokens)
        self.manager.commit(cache, tokens, num_kept or num_tokens, will_evict=will_evict)
        return True

    def _quantize(self, cache: SequenceCache, tokens: Sequence[int]) -> None:
        """Do the jobs of a step: their rows must be there, and the page nobody else's."""
        for group in range(len(cache.tables)) if self.old else ():
            for job, index in zip(
                row_group_jobs(self.old, cache, group),
                range(cache.num_quantized[group], len(cache.quantized_tables[group])),
                strict=True,
            ):
                size = self.old.format.group_size
                for row in range(index * size, (index + 1) * size):
                    page = job[1 + row % size // self.block_size]
                    assert page != NULL_PAGE, "a row to quantize is gone"
                    slot = self.slots[page, row % self.block_size]
                    assert slot == (group, (*tokens[: row + 1],)), "a wrong row is quantized"
                assert self.manager.quantized.pool.reference_count(job[0]) == 1
                self.quantized[job[0]] = (group, (*tokens[: (index + 1) * size],))

    def run(self, tokens: Sequence[int], chunk: int = 1000) -> tuple[SequenceCache, int]:
        """Store a new sequence in chunks beside what is cached; return it and the tokens found."""
        cache = self.manager.new_sequence()
        found = self.manager.adopt_prefix(cache, self.manager.match_prefix(tokens))
        self.check_visible(cache, tokens)
        while cache.num_tokens < len(tokens):
            assert self.store(cache, tokens, min(cache.num_tokens + chunk, len(tokens)))
        self.check_visible(cache, tokens)
        return cache, found

    def check_visible(self, cache: SequenceCache, tokens: Sequence[int]) -> None:
        """Assert that all keys which the next token sees are where the tables say, and right."""
        for group, table in enumerate(cache.tables):
            window = self.manager.layout.groups[group].window
            positions = self.positions(cache, group)
            assert len(positions) == cache.num_rows[group]
            first = 0 if window is None else max(cache.num_tokens - window + 1, 0)
            bound = self.old.num_readable(group, cache.num_tokens) if self.old else 0
            for row, position in enumerate(positions[first:], start=first):
                if row < bound * self.block_size:
                    self._check_quantized(cache, tokens, group, position)
                    continue
                slot = table[row // self.block_size], row % self.block_size
                assert self.slots[slot] == (group, (*tokens[: position + 1],))

    def _check_quantized(
        self, cache: SequenceCache, tokens: Sequence[int], group: int, position: int
    ) -> None:
        size = self.old.format.group_size
        index = position // size
        page = cache.quantized_tables[group][index]
        assert self.quantized[page] == (group, (*tokens[: (index + 1) * size],))


@pytest.fixture
def layout_of() -> Callable[..., KVLayout]:
    """Factory: ``layout_of(None, 8)`` is a full group and one with a window of 8."""
    return make_layout


@pytest.fixture
def shadow_cache() -> type[ShadowCache]:
    """The class above."""
    return ShadowCache
