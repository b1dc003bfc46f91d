"""Moving the rows that an eviction keeps: what moves where, and what is read back."""

from __future__ import annotations

import random

import pytest
import torch

from infopt.cache.compaction import KeptRows, RowMove
from infopt.cache.groups import KVGroup, KVLayout
from infopt.cache.pages import PageStore


def test_kept_rows_know_how_many_stay_in_place() -> None:
    assert KeptRows(torch.tensor([[[0, 1, 2, 5]], [[0, 1, 3, 5]]])).num_unmoved == 2
    assert KeptRows(torch.tensor([[[1, 2]]])).num_unmoved == 0
    assert KeptRows(torch.tensor([[[0, 1, 2]]])).num_unmoved == 3


LAYOUT = KVLayout((KVGroup((0, 1, 2)), KVGroup((3, 4))), 3, 4, 2, 5, 4)


@pytest.mark.parametrize("group", [0, 1])
@pytest.mark.parametrize("overlap", [True, False])
def test_rows_move_by_layer_and_head(group: int, overlap: bool) -> None:
    store = PageStore(LAYOUT, 12, 0, torch.float32, torch.device("cpu"))
    store.buffer.copy_(torch.randn(store.buffer.shape))
    before = store.buffer.clone()
    rng, sources = random.Random(group), [7, 3, 9, 5]
    targets = [7, 3] if overlap else [2, 11]
    num_layers = len(LAYOUT.groups[group].layers)
    rows = torch.tensor(
        [[sorted(rng.sample(range(15), 7)) for _ in range(2)] for _ in range(num_layers)]
    )
    keys, values = store.read_rows(group, sources, 15)
    assert keys.shape == (num_layers, 2, 15, 5)
    store.move_rows(RowMove(KeptRows(rows), sources, targets, 0))
    kept_keys, kept_values = store.read_rows(group, targets, 7)
    for layer in range(num_layers):
        for head in range(2):
            chosen = rows[layer, head]
            assert torch.equal(kept_keys[layer, head], keys[layer, head, chosen])
            assert torch.equal(kept_values[layer, head], values[layer, head, chosen])
    untouched = [page for page in range(13) if page not in targets]
    assert torch.equal(store.buffer[untouched], before[untouched])


def test_reading_rows_follows_the_table() -> None:
    store = PageStore(LAYOUT, 4, 0, torch.float32, torch.device("cpu"))
    for layer, (group, pages) in enumerate(store.layer_pages(5)):
        for row in range(6):
            page = [3, 1][row // 4] if group == 0 else [2, 4][row // 4]
            pages.keys[page, :, row % 4] = 100 * layer + row
            pages.values[page, :, row % 4] = -(100 * layer + row)
    for group, table in ((0, [3, 1]), (1, [2, 4])):
        keys, values = store.read_rows(group, table, 6)
        layers = torch.tensor(LAYOUT.groups[group].layers)
        expected = (100 * layers[:, None] + torch.arange(6))[:, None, :, None].expand_as(keys)
        assert torch.equal(keys, expected.float())
        assert torch.equal(values, -expected.float())
