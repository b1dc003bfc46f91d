"""The paged cache holds and returns what transformers' own does."""

from __future__ import annotations

import pytest
import torch
from transformers.cache_utils import DynamicCache

from infopt.errors import UnsupportedModelError
from infopt.models.fallback.cache import PagedCache
from infopt.models.fallback.parts import CachePart, LayerPartPages, LayerParts, PartPages
from infopt.models.fallback.step import Rectangle
from infopt.ops import ForwardContext, GroupContext

BLOCK = 4
LATENT = LayerParts(
    (CachePart("keys", 1, 6), CachePart("values", 1, 2), CachePart("index_keys", 1, 3))
)
PLAIN = LayerParts((CachePart("keys", 2, 5), CachePart("values", 2, 4)))


def pages_of(layers: tuple[LayerParts, ...], num_pages: int = 9) -> dict[int, LayerPartPages]:
    return {
        index: LayerPartPages(
            0,
            {
                part.name: PartPages(part, torch.zeros(num_pages, BLOCK, part.values_per_token))
                for part in layer.parts
            },
        )
        for index, layer in enumerate(layers)
        if layer.parts
    }


def step(start: int, num_new: int, table: list[int]) -> tuple[ForwardContext, Rectangle]:
    positions = torch.arange(start, start + num_new)
    pages = torch.tensor(table)[positions // BLOCK]
    group = GroupContext(
        torch.tensor([table], dtype=torch.int32), pages * BLOCK + positions % BLOCK
    )
    context = start + num_new
    ctx = ForwardContext(
        positions, positions, [0, num_new], [context], 0, [group], torch.tensor([0])
    )
    return ctx, Rectangle((0,), num_new, (context,))


@pytest.mark.parametrize("layer", [LATENT, PLAIN], ids=["latent", "plain"])
def test_rows_come_back_as_from_transformers(layer: LayerParts) -> None:
    layers = (layer, LayerParts(()))
    pages, own = pages_of(layers), DynamicCache()
    generator = torch.Generator().manual_seed(0)
    indexed: list[torch.Tensor] = []
    for start, num_new in ((0, 5), (5, 1), (6, 3)):
        cache = PagedCache(*step(start, num_new, [7, 2, 5]), layers, pages, BLOCK)
        assert cache.get_seq_length() == start
        assert cache.get_mask_sizes(num_new, 0) == (start + num_new, 0)
        new = [
            torch.randn(1, part.heads, num_new, part.width, generator=generator)
            for part in layer.parts[:2]
        ]
        keys, values = cache.update(*new, 0)
        expected = own.update(*new, 0)
        assert torch.equal(keys, expected[0]) and torch.equal(values, expected[1])
        if layer is LATENT:
            indexed.append(torch.randn(1, num_new, 3, generator=generator))
            assert torch.equal(cache.update_indexer(indexed[-1], 0), torch.cat(indexed, 1))


def test_only_what_arrives_is_stored() -> None:
    """A latent layer's pages hold latents: nothing is expanded on the way."""
    pages = pages_of((LATENT,))
    cache = PagedCache(*step(0, 2, [3]), (LATENT,), pages, BLOCK)
    cache.update(torch.ones(1, 1, 2, 6), torch.ones(1, 1, 2, 2), 0)
    assert pages[0].parts["keys"].rows[3, :2].sum() == 12
    assert sum(float(p.rows.sum()) for p in pages[0].parts.values()) == 16


def test_a_layer_that_caches_nothing_cannot_be_updated() -> None:
    cache = PagedCache(*step(0, 1, [3]), (LATENT, LayerParts(())), pages_of((LATENT,)), BLOCK)
    with pytest.raises(NotImplementedError):
        cache.update(torch.ones(1, 1, 1, 6), torch.ones(1, 1, 1, 2), 1)


def test_unknown_arguments_are_refused_by_name() -> None:
    cache = PagedCache(*step(0, 1, [3]), (PLAIN,), pages_of((PLAIN,)), BLOCK)
    new = torch.ones(1, 2, 1, 5), torch.ones(1, 2, 1, 4)
    with pytest.raises(UnsupportedModelError, match="compress_ratio"):
        cache.update(*new, 0, compress_ratio=4)
    cache.update(*new, 0, compress_ratio=None)
