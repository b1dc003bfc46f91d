"""Keys of cached pages: what differs must not collide, what is equal must agree."""

from itertools import combinations

from hypothesis import given
from hypothesis import strategies as st

from infopt.cache.hashing import chain_key, root_key
from infopt.cache.manager import CacheManager

TOKENS = st.lists(st.integers(0, 2**31), max_size=12)


def test_fields_of_different_kinds_with_equal_text_differ() -> None:
    """Pins: a salt "x" and an adapter "x" shared pages, and so did "ab" + "c" and "a" + "bc"."""
    fields = [
        {"salt": "x", "adapter": None},
        {"salt": None, "adapter": "x"},
        {"salt": "ab", "adapter": "c"},
        {"salt": "a", "adapter": "bc"},
        {"salt": "None", "adapter": "x"},
        {"salt": 1, "adapter": "x"},
        {"salt": "1", "adapter": "x"},
        {"salt": "x"},
    ]
    keys = [chain_key(root_key(f), [1, 2, 3, 4]) for f in fields]
    assert all(one != other for one, other in combinations(keys, 2))


def test_the_order_of_fields_does_not_matter() -> None:
    assert root_key({"a": 1, "b": 2}) == root_key({"b": 2, "a": 1})


@given(TOKENS, TOKENS)
def test_keys_agree_exactly_for_equal_tokens(one: list[int], other: list[int]) -> None:
    root = root_key({})
    assert (chain_key(root, one) == chain_key(root, other)) == (one == other)


def test_a_key_depends_on_all_that_precedes_the_page() -> None:
    root = root_key({})
    page = [7, 8]
    assert chain_key(chain_key(root, [1, 2]), page) != chain_key(chain_key(root, [1, 3]), page)
    assert chain_key(chain_key(root, [1, 2]), page) != chain_key(root, page)


def test_page_sizes_share_no_key(layout_of) -> None:
    """Pins: hashes made for one page size were attached to pages of another."""
    tokens = list(range(16))
    keys = []
    for block_size in (4, 8):
        manager = CacheManager(layout_of(None, block_size=block_size), 8, {"model": "m"})
        cache = manager.new_sequence()
        assert manager.allocate(cache, 16)
        manager.commit(cache, tokens, 16)
        keys.append(set(cache.keys))
    assert len(keys[0]) == 4
    assert len(keys[1]) == 2
    assert not keys[0] & keys[1]


def test_models_share_no_page(layout_of) -> None:
    """Pins: pages computed with one set of weights were reused for another."""
    keys = []
    for identity in ({"model": "m", "dtype": "float32"}, {"model": "m", "dtype": "bfloat16"}):
        manager = CacheManager(layout_of(None), 8, identity)
        cache = manager.new_sequence()
        manager.allocate(cache, 8)
        manager.commit(cache, list(range(8)), 8)
        keys.append(set(cache.keys))
    assert not keys[0] & keys[1]
