"""The prefix cache: what is found, shared, and given up first."""

import pytest

from infopt.cache.block_pool import NULL_PAGE

PAGE = 4


@pytest.mark.parametrize("chunk", [1, 3, 1000])
@pytest.mark.parametrize("windows", [(None,), (None, 6), (6,), (None, 1), (None, 2, 9)])
def test_a_repeated_prompt_finds_its_full_pages_but_one_token(
    shadow_cache, windows, chunk: int
) -> None:
    """Pins: a warm answer was wrong because the prefill resumed at a wrong position."""
    for length in range(1, 41):
        shadow, tokens = shadow_cache(*windows), list(range(length))
        cold, found_cold = shadow.run(tokens, chunk)
        shadow.manager.free(cold)
        warm, found_warm = shadow.run(tokens, chunk)
        assert found_cold == 0
        assert found_warm == (length - 1) // PAGE * PAGE  # the last token is always computed
        shadow.manager.free(warm)
        shadow.manager.check_integrity()


@pytest.mark.parametrize("common", range(0, 17))
def test_sequences_share_exactly_their_common_full_pages(shadow_cache, common: int) -> None:
    shadow = shadow_cache(None)
    first, _ = shadow.run([*range(common), 100, *range(20)])
    second, found = shadow.run([*range(common), 101, *range(20)])
    assert found == common // PAGE * PAGE
    pages, others = first.tables[0], second.tables[0]
    assert pages[: found // PAGE] == others[: found // PAGE]
    assert not set(pages[found // PAGE :]) & set(others[found // PAGE :])
    assert shadow.pool.num_used == len({*pages, *others})


def test_without_prefix_caching_nothing_is_found_or_kept(shadow_cache) -> None:
    shadow = shadow_cache(None, enable_prefix_caching=False)
    cache, _ = shadow.run(list(range(20)))
    assert shadow.run(list(range(20)))[1] == 0
    shadow.manager.free(cache)
    assert shadow.pool.num_cached == 0


def test_a_hit_needs_only_the_pages_that_a_window_shows(shadow_cache) -> None:
    shadow, tokens = shadow_cache(None, 6), list(range(40))
    cache, _ = shadow.run(tokens, chunk=5)
    shadow.manager.free(cache)
    keys = shadow.manager.match_prefix(tokens)
    for key in keys[:7]:  # the token at 36 sees 31 .. 36: pages 7 and 8
        drop_cached(shadow, (1, key))
    warm = shadow.manager.new_sequence()
    assert shadow.manager.adopt_prefix(warm, shadow.manager.match_prefix(tokens)) == 36
    assert [page != NULL_PAGE for page in warm.tables[1]] == [False] * 7 + [True] * 2
    shadow.check_visible(warm, tokens)


def test_a_hit_ends_where_a_window_page_is_missing(shadow_cache) -> None:
    shadow, tokens = shadow_cache(None, 6), list(range(40))
    cache, _ = shadow.run(tokens)
    shadow.manager.free(cache)
    drop_cached(shadow, (1, shadow.manager.match_prefix(tokens)[7]))
    # Nine pages would need pages 7 and 8, eight pages 6 and 7; seven need 5 and 6.
    assert len(shadow.manager.match_prefix(tokens)) == 7
    shadow.run(tokens)


def drop_cached(shadow, key) -> None:
    """Evict one page out of turn."""
    page = shadow.pool.lookup(key)
    del shadow.pool._cached[page]
    shadow.pool._forget(page)
    shadow.pool._free.append(page)
    shadow.manager.check_integrity()


def test_pages_are_evicted_from_the_end_of_a_prefix(shadow_cache) -> None:
    """Pins: all pages of one group were evicted before any of another, which ended every hit."""
    shadow, tokens = shadow_cache(None, 100, num_pages=20), list(range(40))
    cache, _ = shadow.run(tokens)
    shadow.manager.free(cache)
    for num_evicted, pages_left in ((2, 9), (6, 7), (10, 5)):
        other = shadow.manager.new_sequence()
        assert shadow.manager.allocate(other, num_evicted // 2 * PAGE)
        assert len(shadow.manager.match_prefix(tokens)) == pages_left
        shadow.manager.free(other)


def test_adopting_counts_the_evictable_pages_it_takes(shadow_cache) -> None:
    shadow, tokens = shadow_cache(None, 6), list(range(21))
    cache, _ = shadow.run(tokens)
    keys = shadow.manager.match_prefix(tokens)
    # In use: the full group's pages, and of the window group those that are still seen.
    assert shadow.manager.num_pages_to_adopt(keys) < len(keys)
    shadow.manager.free(cache)
    expected = shadow.manager.num_pages_to_adopt(keys)
    before = shadow.pool.num_available
    shadow.manager.adopt_prefix(shadow.manager.new_sequence(), keys)
    assert before - shadow.pool.num_available == expected == 5 + 2


def test_reset_forgets_prefixes_but_not_sequences(shadow_cache) -> None:
    shadow, tokens = shadow_cache(None), list(range(20))
    cache, _ = shadow.run(tokens)
    shadow.manager.reset_prefix_cache()
    assert shadow.manager.match_prefix(tokens) == []
    shadow.check_visible(cache, tokens)
    shadow.manager.free(cache)
    assert shadow.pool.num_free == shadow.pool.num_pages
