"""Random life of many sequences over several KV groups, checked after every step."""

from __future__ import annotations

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from infopt.cache.block_pool import NULL_PAGE
from infopt.cache.manager import SequenceCache
from infopt.cache.page_needs import need_to_restore, need_to_start
from infopt.cache.quantized_pages import PageNeed
from infopt.ops.kv_quantization import KVFormat

PAGE = 4
FORMATS = [None, KVFormat("int8", 8, 12), KVFormat("int4", 4, 8), KVFormat("int8", 16, 20)]
BUDGET = 10
"""Most rows that an eviction leaves."""


class CacheMachine(RuleBasedStateMachine):
    """Sequences over two letters, so that prefixes are shared often; pages are scarce."""

    shadow_class: type

    def __init__(self) -> None:
        super().__init__()
        self.live: list[tuple[SequenceCache, list[int]]] = []
        self.swapped: list[tuple[SequenceCache, list[int], list, list, tuple, int, list]] = []
        self.evicting: set[SequenceCache] = set()

    @initialize(
        windows=st.sampled_from([(None,), (None, 6), (5, 9), (None, 1, 8), (None, 17), (16, 21)]),
        kv_format=st.sampled_from(FORMATS),
        num_quantized=st.integers(3, 12),
    )
    def start(
        self, windows: tuple[int | None, ...], kv_format: KVFormat | None, num_quantized: int
    ) -> None:
        self.shadow = self.shadow_class(
            *windows, num_pages=24, kv_format=kv_format, num_quantized=num_quantized
        )
        self.manager = self.shadow.manager

    @rule(
        tokens=st.lists(st.integers(0, 1), min_size=1, max_size=24),
        chunk=st.integers(1, 24),
        evicts=st.booleans(),
    )
    def admit(self, tokens: list[int], chunk: int, evicts: bool) -> None:
        evicts = evicts and self.manager.quantized is None  # both at once are refused
        windows = [group.window for group in self.manager.layout.groups]
        rows = [BUDGET if evicts and window is None else 0 for window in windows]
        keys = self.manager.match_prefix(tokens)
        found = len(keys) * PAGE
        cache = self.manager.new_sequence()
        end = min(found + chunk, len(tokens))
        need = need_to_start(self.manager, cache, keys, end)
        need += PageNeed(sum(self.manager.num_to_reserve(len(keys), rows)))
        if not self.manager.fits(need):
            return
        assert self.manager.adopt_prefix(cache, keys) == found
        self.manager.reserve(cache, rows)
        self.shadow.check_visible(cache, tokens)
        if evicts:
            self.evicting.add(cache)
        stored = self.shadow.store(cache, tokens, end, will_evict=evicts)
        assert stored, "admission counted too few pages"
        self.live.append((cache, tokens))

    @precondition(lambda self: self.live)
    @rule(data=st.data(), count=st.integers(1, 9), num_rejected=st.integers(0, 3))
    def grow(self, data: st.DataObject, count: int, num_rejected: int) -> None:
        """Store tokens; some of them may turn out to be wrong guesses."""
        cache, tokens = data.draw(st.sampled_from(self.live))
        tokens.extend(index % 2 for index in range(count + cache.num_tokens - len(tokens)))
        before = [[*map(list, cache.tables)], [*map(list, cache.quantized_tables)]]
        kept = max(cache.num_tokens + count - num_rejected, cache.num_tokens + 1)
        evicts, end = cache in self.evicting, cache.num_tokens + count
        if not self.shadow.store(cache, tokens, end, num_kept=kept, will_evict=evicts):
            assert [cache.tables, cache.quantized_tables] == before

    @precondition(lambda self: any(cache in self.evicting for cache, _ in self.live))
    @rule(data=st.data())
    def evict(self, data: st.DataObject) -> None:
        sequences = [(cache, tokens) for cache, tokens in self.live if cache in self.evicting]
        cache, tokens = data.draw(st.sampled_from(sequences))
        groups = [i for i, g in enumerate(self.manager.layout.groups) if g.window is None]
        if not groups:
            return
        group = data.draw(st.sampled_from(groups))
        num_rows = cache.num_rows[group]
        rows = data.draw(st.sets(st.integers(0, num_rows - 1), min_size=1, max_size=BUDGET))
        available, used = self.shadow.pool.num_available, self.shadow.pool.num_used
        self.shadow.evict(cache, group, sorted(rows), tokens)
        assert cache.num_rows[group] == len(rows)
        assert len(cache.tables[group]) == -(-len(rows) // PAGE)
        assert self.shadow.pool.num_available - available == used - self.shadow.pool.num_used >= 0

    @precondition(lambda self: self.live)
    @rule(data=st.data())
    def free(self, data: st.DataObject) -> None:
        cache, _ = self.live.pop(data.draw(st.integers(0, len(self.live) - 1)))
        self.manager.free(cache)
        self.manager.free(cache)  # freeing twice is harmless

    @precondition(lambda self: self.live)
    @rule(data=st.data())
    def swap_out(self, data: st.DataObject) -> None:
        cache, tokens = self.live.pop(data.draw(st.integers(0, len(self.live) - 1)))
        hosts = [[-1 if page == NULL_PAGE else page for page in t] for t in cache.tables]
        old = [[-1 if page == NULL_PAGE else page for page in t] for t in cache.written_tables]
        pages = {page for table in hosts for page in table}
        content = {slot: value for slot, value in self.shadow.slots.items() if slot[0] in pages}
        contents = (content, dict(self.shadow.quantized))
        num_tokens, evicted = cache.num_tokens, cache.num_evicted
        self.manager.free(cache)
        self.swapped.append((cache, tokens, hosts, old, contents, num_tokens, evicted))

    @precondition(lambda self: self.swapped)
    @rule()
    def swap_in(self) -> None:
        cache, tokens, hosts, old, (content, old_content), num_tokens, evicted = self.swapped[0]
        cache.num_evicted = evicted
        rows = [num_tokens - gone for gone in evicted]
        if not self.manager.fits(need_to_restore(self.manager, hosts, old, rows)):
            return
        for host, page in self.manager.restore_quantized(cache, old):
            self.shadow.quantized[page] = old_content[host]
        for host, page in self.manager.restore(cache, hosts, num_tokens):
            self.shadow.slots |= {(page, i): content.get((host, i)) for i in range(PAGE)}
        self.shadow.check_visible(cache, tokens)
        self.live.append((cache, tokens))
        del self.swapped[0]

    @rule()
    def reset(self) -> None:
        self.manager.reset_prefix_cache()
        assert self.shadow.pool.num_cached == 0

    @invariant()
    def consistent(self) -> None:
        if not hasattr(self, "manager"):
            return
        self.manager.check_integrity()
        for cache, tokens in self.live:
            self.shadow.check_visible(cache, tokens)

    def teardown(self) -> None:
        for cache, _ in self.live:
            self.manager.free(cache)
        if hasattr(self, "manager"):
            self.manager.check_integrity()
            assert self.shadow.pool.num_used == 0
            assert not self.manager.quantized or self.manager.quantized.pool.num_used == 0


def test_any_life_of_sequences_keeps_pages_and_contents_right(shadow_cache) -> None:
    CacheMachine.shadow_class = shadow_cache
    run_state_machine_as_test(
        CacheMachine,
        settings=settings(
            max_examples=60,
            stateful_step_count=40,
            deadline=None,
            suppress_health_check=list(HealthCheck),
        ),
    )
