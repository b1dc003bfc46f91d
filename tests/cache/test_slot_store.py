"""States of sequences come and go with their pages."""

from __future__ import annotations

import pytest

from infopt.cache.groups import KVGroup, KVLayout
from infopt.cache.slot_store import StateManager, StateStore

LAYOUT = KVLayout((KVGroup((0,)),), 1, 4, 1, 50, 1)


@pytest.fixture
def store() -> StateStore:
    return StateStore(LAYOUT, 6)


def test_memory_is_what_pages_count(store: StateStore) -> None:
    assert LAYOUT.bytes_per_token == 100
    assert store.num_bytes == 6 * 4 * 100


def test_a_state_goes_with_its_pages(store: StateStore) -> None:
    manager = StateManager(LAYOUT, 6, {}, store)
    caches = [manager.new_sequence() for _ in range(2)]
    for cache in caches:
        assert manager.allocate(cache, 6)
        store.states[cache.tables[0][0]] = object()
    manager.free(caches[0])
    assert list(store.states) == [caches[1].tables[0][0]]
    manager.free(caches[1])
    manager.free(caches[1])
    assert not store.states
    manager.check_integrity()


def test_no_prefix_is_ever_found(store: StateStore) -> None:
    """A state belongs to one sequence; its tokens cannot be shared page by page."""
    manager = StateManager(LAYOUT, 6, {}, store)
    cache = manager.new_sequence()
    assert manager.allocate(cache, 8)
    manager.commit(cache, list(range(8)), 8)
    manager.free(cache)
    assert manager.match_prefix(list(range(9))) == []


def test_swapping_is_a_bug(store: StateStore) -> None:
    store.swap_out([])
    store.swap_in([])
    with pytest.raises(AssertionError):
        store.swap_out([(1, 1)])
