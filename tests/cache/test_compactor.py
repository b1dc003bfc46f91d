"""What an eviction keeps: which pages are written, which are replaced, and which come back."""

from __future__ import annotations

from typing import Any

TOKENS = list(range(100, 124))


def evicting(shadow: Any, tokens: list[int], budget: int = 8) -> Any:
    """Store a sequence that will be evicted from, on what is cached of it."""
    manager, cache = shadow.manager, shadow.manager.new_sequence()
    manager.adopt_prefix(cache, manager.match_prefix(tokens))
    manager.reserve(cache, [budget])
    assert shadow.store(cache, tokens, len(tokens), will_evict=True)
    return cache


def test_pages_come_back_and_positions_go_on(shadow_cache: Any) -> None:
    """The next token is the 25th, whatever is left of the others."""
    shadow = shadow_cache(num_pages=10)
    cache = evicting(shadow, TOKENS)
    assert shadow.pool.num_used == 6
    shadow.evict(cache, 0, [0, 1, 7, 12, 22, 23], TOKENS)
    assert shadow.pool.num_used == 2
    assert (cache.num_tokens, cache.num_rows, cache.is_evicted) == (24, [6], True)
    shadow.check_visible(cache, TOKENS)
    more = [*TOKENS, 1, 2, 3]
    assert shadow.manager.num_new_pages(cache, 26) == 0
    assert shadow.store(cache, more, 27, will_evict=True)
    assert shadow.positions(cache, 0) == [0, 1, 7, 12, 22, 23, 24, 25, 26]
    assert shadow.pool.num_used == 3
    shadow.check_visible(cache, more)
    shadow.manager.check_integrity()
    shadow.manager.free(cache)
    assert shadow.pool.num_used == 0


def test_rejected_guesses_behind_an_eviction_give_pages_back(shadow_cache: Any) -> None:
    shadow = shadow_cache(num_pages=10)
    cache = evicting(shadow, TOKENS)
    shadow.evict(cache, 0, [0, 1, 2, 23], TOKENS)
    assert shadow.manager.allocate(cache, 24 + 6)
    assert len(cache.tables[0]) == 3
    shadow.manager.commit(cache, [*TOKENS, 5], 25, will_evict=True)
    assert len(cache.tables[0]) == 2 and cache.num_rows == [5]
    shadow.manager.check_integrity()


def test_where_pages_are_free_the_prompt_stays_findable(shadow_cache: Any) -> None:
    shadow = shadow_cache(num_pages=20)
    cache = evicting(shadow, TOKENS)
    assert shadow.manager.match_prefix(TOKENS) == [], "findable before the eviction"
    shadow.evict(cache, 0, [0, 5, 9, 20, 23], TOKENS)
    assert shadow.pool.num_used == 2
    other, found = shadow.run([*TOKENS, 7])
    assert found == 24
    shadow.check_visible(cache, TOKENS)
    shadow.check_visible(other, [*TOKENS, 7])
    shadow.manager.check_integrity()


def test_where_pages_are_scarce_they_are_written_over(shadow_cache: Any) -> None:
    """Nobody finds a page whose rows are gone."""
    shadow = shadow_cache(num_pages=6)
    cache = evicting(shadow, TOKENS)
    before = list(cache.tables[0])
    shadow.evict(cache, 0, [0, 5, 9, 20, 23], TOKENS)
    assert cache.tables[0] == before[:2]
    assert shadow.pool.num_free == 4
    assert shadow.manager.match_prefix([*TOKENS, 7]) == []
    shadow.check_visible(cache, TOKENS)


def test_shared_pages_are_copied_to_reserved_ones(shadow_cache: Any) -> None:
    """The pool is full when the eviction comes: what it needs was held since the admission."""
    shadow = shadow_cache(num_pages=6 + 2 + 2)
    owner, _ = shadow.run(TOKENS)
    longer = [*TOKENS[:20], 1, 2, 3, 4]
    cache = evicting(shadow, longer, budget=7)
    assert cache.tables[0][:5] == owner.tables[0][:5]
    assert [len(pages) for pages in cache.reserved] == [2]
    filler, _ = shadow.run([9])
    assert shadow.pool.num_available == 0
    shadow.evict(cache, 0, [1, 2, 3, 9, 21, 22, 23], longer)
    assert not set(cache.tables[0]) & set(owner.tables[0])
    assert cache.reserved == [[]]
    for one, tokens in ((owner, TOKENS), (cache, longer), (filler, [9])):
        shadow.check_visible(one, tokens)
    shadow.manager.check_integrity()


def test_shared_pages_whose_rows_stay_are_kept(shadow_cache: Any) -> None:
    shadow = shadow_cache(num_pages=20)
    owner, _ = shadow.run(TOKENS)
    cache = evicting(shadow, [*TOKENS, 5], budget=8)
    shadow.evict(cache, 0, [0, 1, 2, 3, 10, 24], [*TOKENS, 5])
    assert cache.tables[0][0] == owner.tables[0][0]
    assert [len(pages) for pages in cache.reserved] == [1], "it may have to be copied later"
    shadow.evict(cache, 0, [0, 3, 5], [*TOKENS, 5])
    assert cache.tables[0][0] != owner.tables[0][0]
    assert shadow.positions(cache, 0) == [0, 3, 24]
    shadow.check_visible(cache, [*TOKENS, 5])
    shadow.check_visible(owner, TOKENS)
    shadow.manager.check_integrity()


def test_reserved_pages_come_back_with_the_sequence(shadow_cache: Any) -> None:
    shadow = shadow_cache(num_pages=20)
    shadow.run(TOKENS)
    cache = evicting(shadow, [*TOKENS, 5])
    used = shadow.pool.num_used
    assert sum(map(len, cache.reserved)) == 2
    shadow.manager.check_integrity()
    shadow.manager.free(cache)
    assert shadow.pool.num_used == used - 1 - 2
    shadow.manager.check_integrity()
