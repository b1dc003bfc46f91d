"""Page states, reference counts, and the order in which cached pages are evicted."""

import pytest

from infopt.cache.block_pool import NULL_PAGE, BlockPool


def counts(pool: BlockPool) -> tuple[int, int, int]:
    pool.check_integrity()
    return pool.num_free, pool.num_cached, pool.num_used


def test_a_page_goes_from_free_to_used_to_cached_and_back() -> None:
    pool = BlockPool(3)
    assert counts(pool) == (3, 0, 0)
    first, second = pool.allocate(), pool.allocate()
    pool.register(first, "a")
    assert counts(pool) == (1, 0, 2)
    pool.release(first)
    pool.release(second)
    assert counts(pool) == (2, 1, 0)
    assert pool.is_cached(first)
    assert not pool.is_cached(second)
    pool.share(pool.lookup("a"))
    assert counts(pool) == (2, 0, 1)
    assert pool.reference_count(first) == 1


def test_the_null_page_is_never_handed_out() -> None:
    pool = BlockPool(8)
    pages = [pool.allocate() for _ in range(8)]
    assert sorted(pages) == list(range(1, 9))
    assert NULL_PAGE not in pages
    assert pool.num_available == 0


def test_a_shared_page_stays_until_its_last_reference() -> None:
    pool = BlockPool(1)
    page = pool.allocate()
    pool.share(page)
    pool.release(page)
    assert counts(pool) == (0, 0, 1)
    pool.release(page)
    assert counts(pool) == (1, 0, 0)


def test_the_page_unused_for_longest_is_evicted_first() -> None:
    pool = BlockPool(3)
    pages = {key: pool.allocate() for key in "abc"}
    for key, page in pages.items():
        pool.register(page, key)
        pool.release(page)
    pool.share(pages["a"])  # used again: now the youngest
    pool.release(pages["a"])
    assert [pool.allocate() for _ in range(3)] == [pages["b"], pages["c"], pages["a"]]
    assert [pool.lookup(key) for key in "abc"] == [None] * 3
    pool.check_integrity()


def test_free_pages_are_taken_before_cached_ones() -> None:
    pool = BlockPool(2)
    page = pool.allocate()
    pool.register(page, "a")
    pool.release(page)
    assert pool.allocate() != page
    assert pool.lookup("a") == page


def test_the_first_page_with_a_key_keeps_it() -> None:
    pool = BlockPool(2)
    first, second = pool.allocate(), pool.allocate()
    pool.register(first, "a")
    pool.register(second, "a")
    pool.register(first, "b")
    assert pool.lookup("a") == first
    assert pool.lookup("b") is None
    pool.release(second)
    assert counts(pool) == (1, 0, 1)


def test_clearing_the_cache_keeps_pages_in_use() -> None:
    pool = BlockPool(3)
    used, cached = pool.allocate(), pool.allocate()
    pool.register(used, "a")
    pool.register(cached, "b")
    pool.release(cached)
    pool.clear_cache()
    assert counts(pool) == (2, 0, 1)
    assert pool.lookup("a") is None
    pool.release(used)
    assert counts(pool) == (3, 0, 0)


@pytest.mark.parametrize("damage", ["free twice", "lost", "two states", "no key", "key of free"])
def test_the_integrity_check_sees_every_kind_of_damage(damage: str) -> None:
    pool = BlockPool(4)
    pages = [pool.allocate() for _ in range(3)]
    pool.register(pages[0], "a")
    pool.release(pages[0])
    match damage:
        case "free twice":
            pool._free.append(pool._free[0])
        case "lost":
            pool._free.clear()
        case "two states":
            pool._free.append(pages[1])
        case "no key":
            pool._key_of.clear()
            pool._page_of.clear()
        case "key of free":
            pool._key_of[pool._free[0]] = "b"
            pool._page_of["b"] = pool._free[0]
    with pytest.raises(AssertionError):
        pool.check_integrity()
