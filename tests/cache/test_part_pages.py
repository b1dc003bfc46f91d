"""Pages of layers that do not all cache the same."""

from __future__ import annotations

import pytest
import torch

from infopt.cache.part_pages import PartStore, plan_part_layout
from infopt.models.fallback.parts import CachePart, LayerParts, describe_layers

LATENT = LayerParts((CachePart("keys", 1, 512), CachePart("values", 1, 64)))
INDEXED = LayerParts((*LATENT.parts, CachePart("index_keys", 1, 128)))
FULL = LayerParts((CachePart("keys", 2, 16), CachePart("values", 2, 16)))
WINDOW = LayerParts(FULL.parts, 24)
NOTHING = LayerParts(())


def test_full_size_latents_take_what_the_paper_says() -> None:
    """DeepSeek-V3: (512 + 64) values in 61 layers, 16 bits each."""
    layout = plan_part_layout([LATENT] * 61, 16, 2, 163840)
    assert layout.stored_bytes_per_token == 70_272
    assert layout.bytes_per_token == 70_272
    assert layout.page_bytes == 16 * 70_272


def test_layers_may_lack_a_part() -> None:
    layout = plan_part_layout([INDEXED, LATENT, INDEXED], 16, 4, 1000)
    assert layout.stored_bytes_per_token == (3 * 576 + 2 * 128) * 4 == layout.bytes_per_token
    assert layout.groups[0].layers == (0, 1, 2)


def test_windows_form_groups_of_their_own() -> None:
    layout = plan_part_layout([WINDOW, WINDOW, FULL] * 2, 16, 4, 1000)
    assert sorted((g.window or 0, g.layers) for g in layout.groups) == [
        (0, (2, 5)),
        (24, (0, 1)),
        (24, (3, 4)),
    ]
    assert layout.stored_bytes_per_token == layout.bytes_per_token == 6 * 64 * 4


def test_a_window_that_no_sequence_outgrows_is_full() -> None:
    layout = plan_part_layout([WINDOW, FULL], 16, 4, 24)
    assert [(g.window, g.layers) for g in layout.groups] == [(None, (0, 1))]


def test_layers_without_a_cache_take_no_room() -> None:
    layout = plan_part_layout([FULL, NOTHING, NOTHING], 16, 4, 100)
    assert layout.groups[0].layers == (0,)
    assert layout.bytes_per_token == 64 * 4
    assert describe_layers((FULL, NOTHING, NOTHING)) == (
        "1 x [keys 2x16 + values 2x16], 2 x [nothing]"
    )


@pytest.mark.parametrize("sizes", [[(64, 24), (64, 24), (640, None)], [(96, 8), (64, None)] * 3])
def test_unused_room_is_counted(sizes: list[tuple[int, int | None]]) -> None:
    layers = [LayerParts((CachePart("keys", 1, size),), window) for size, window in sizes]
    layout = plan_part_layout(layers, 8, 2, 100)
    held = [layer for group in layout.groups for layer in group.layers]
    assert sorted(held) == list(range(len(layers)))
    for group in layout.groups:
        assert sum(layers[i].values_per_token for i in group.layers) <= layout.row_values
    assert layout.bytes_per_token >= layout.stored_bytes_per_token == sum(s for s, _ in sizes) * 2


def test_parts_do_not_overlap_and_fill_the_page() -> None:
    layers = [INDEXED, LATENT]
    layout = plan_part_layout(layers, 4, 4, 100)
    store = PartStore(layout, 3, 0, torch.float32, torch.device("cpu"))
    for number, pages in store.layer_pages(2).items():
        for place, part in enumerate(pages.parts.values()):
            assert not part.rows.any(), "it overlaps another part"
            part.rows.fill_(10 * number + place + 1)
    assert (store.buffer != 0).all()


def test_swapped_pages_come_back() -> None:
    layout = plan_part_layout([INDEXED, LATENT], 4, 4, 100)
    store = PartStore(layout, 3, 2, torch.float32, torch.device("cpu"))
    store.buffer.copy_(torch.randn(store.buffer.shape, generator=torch.Generator().manual_seed(0)))
    kept = store.buffer[2].clone()
    store.swap_out([(2, 1)])
    store.buffer[2] = 0
    store.swap_in([(1, 3)])
    assert torch.equal(store.buffer[3], kept)
