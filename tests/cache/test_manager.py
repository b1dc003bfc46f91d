"""Block tables: allocation, windows, swapping, and the memory they waste."""

import random

import pytest

from infopt.cache.block_pool import NULL_PAGE

PAGE = 4


def test_pages_behind_a_window_go_back_to_the_pool(shadow_cache) -> None:
    shadow = shadow_cache(None, 6)
    cache = shadow.manager.new_sequence()
    tokens = list(range(40))
    for length in range(1, 41):
        assert shadow.store(cache, tokens, length)
        shadow.check_visible(cache, tokens)
        kept = [page != NULL_PAGE for page in cache.tables[1]]
        first_seen = max(length - 6 + 1, 0)  # by the token at position `length`
        assert kept == [i >= first_seen // PAGE for i in range(len(kept))]
        assert NULL_PAGE not in cache.tables[0]
        assert shadow.pool.num_used == cache.num_pages


def test_a_failed_allocation_changes_nothing(shadow_cache) -> None:
    shadow = shadow_cache(None, 8, num_pages=6)
    cache = shadow.manager.new_sequence()
    assert shadow.manager.allocate(cache, 8)
    before = [list(table) for table in cache.tables]
    assert not shadow.manager.allocate(cache, 13)
    assert cache.tables == before
    assert shadow.manager.allocate(cache, 12)
    shadow.manager.check_integrity()


@pytest.mark.parametrize("windows", [(None,), (None, 6)])
def test_a_restored_sequence_goes_on_and_is_found_again(shadow_cache, windows) -> None:
    shadow, tokens = shadow_cache(*windows), list(range(30))
    cache, _ = shadow.run(tokens[:26])
    content, host_tables = {}, []
    for table in cache.tables:
        host_tables.append([-1 if page == NULL_PAGE else page + 1000 for page in table])
        content |= {
            (page + 1000, i): shadow.slots.get((page, i)) for page in table for i in range(PAGE)
        }
    shadow.manager.free(cache)
    shadow.manager.reset_prefix_cache()
    shadow.slots.clear()
    moves = shadow.manager.restore(cache, host_tables, 26)
    shadow.slots = {(p, i): content[host, i] for host, p in moves for i in range(PAGE)}
    shadow.check_visible(cache, tokens)
    assert shadow.pool.num_used == len(moves)
    assert shadow.store(cache, tokens, 30)
    shadow.check_visible(cache, tokens)
    shadow.manager.free(cache)
    shadow.manager.check_integrity()
    assert shadow.run(tokens)[1] == 28


def test_the_integrity_check_sees_a_table_that_disagrees(shadow_cache) -> None:
    shadow = shadow_cache(None)
    cache, _ = shadow.run(list(range(8)))
    shadow.manager.check_integrity()
    shadow.pool.share(cache.tables[0][0])
    with pytest.raises(AssertionError, match="count differs"):
        shadow.manager.check_integrity()
    shadow.pool.release(cache.tables[0][0])
    shadow.pool.allocate()
    with pytest.raises(AssertionError, match="in no block table"):
        shadow.manager.check_integrity()


def test_pages_of_16_waste_under_4_percent_at_a_mean_length_of_300(shadow_cache) -> None:
    """Less than one page per sequence is unused: (16 - 1) / 2 of 300 tokens on average."""
    rng = random.Random(7)
    lengths = [max(1, round(rng.gauss(300, 80))) for _ in range(200)]
    shadow = shadow_cache(None, num_pages=5000, block_size=16, enable_prefix_caching=False)
    for length in lengths:
        cache = shadow.manager.new_sequence()
        assert shadow.manager.allocate(cache, length)
        shadow.manager.commit(cache, [0] * length, length)
    allocated = shadow.pool.num_used * 16
    assert allocated <= sum(-(-length // 16) * 16 for length in lengths)
    assert shadow.manager.num_stored_tokens() == sum(lengths)
    assert 1 - sum(lengths) / allocated < 0.04
