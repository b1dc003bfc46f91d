"""The memory behind the pages: views per layer, and copies to the host and back."""

import torch

from infopt.cache.groups import KVGroup, KVLayout
from infopt.cache.pages import PageStore

LAYOUT = KVLayout(
    groups=(KVGroup((1, 3)), KVGroup((0, 2), window=8)),
    layers_per_group=2,
    block_size=4,
    num_kv_heads=2,
    head_dim=3,
    bytes_per_value=4,
)


def make_store() -> PageStore:
    return PageStore(LAYOUT, 5, 4, torch.float32, torch.device("cpu"))


def test_layers_write_into_memory_of_their_own() -> None:
    store = make_store()
    for layer, (group, pages) in enumerate(store.layer_pages(4)):
        assert group == (0 if layer in (1, 3) else 1)
        assert pages.keys.shape == (6, 2, 4, 3)
        # Groups never hold the same page at once; here layers of each group get pages apart.
        page = 1 + 2 * group
        pages.keys[page], pages.values[page] = layer + 1, -(layer + 1)
    for layer, (group, pages) in enumerate(store.layer_pages(4)):
        page = 1 + 2 * group
        assert torch.all(pages.keys[page] == layer + 1)
        assert torch.all(pages.values[page] == -(layer + 1))
        assert pages.keys[page].is_contiguous()
    assert store.num_bytes == 6 * LAYOUT.page_bytes


def test_swapped_pages_come_back_in_any_place() -> None:
    store = make_store()
    store.buffer.copy_(torch.randn_like(store.buffer))
    wanted = store.buffer.clone()
    store.swap_out([(2, 0), (5, 3)])
    store.buffer[2:].zero_()
    store.swap_in([(3, 1), (0, 4)])
    assert torch.equal(store.buffer[1], wanted[5])
    assert torch.equal(store.buffer[4], wanted[2])
    assert torch.all(store.buffer[2] == 0)


def test_host_memory_is_taken_when_it_is_first_needed() -> None:
    store = make_store()
    store.swap_out([])
    store.swap_in([])
    assert store._swap is None
    store.swap_out([(1, 0)])
    assert store._swap is not None
