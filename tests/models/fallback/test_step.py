"""A flat batch becomes rectangles, and their rows are found in the pages."""

from __future__ import annotations

import random

import pytest
import torch

from infopt.models.fallback.step import (
    MAX_PADDING,
    Rectangle,
    cut,
    group_rows,
    padding_mask,
    token_rows,
)
from infopt.ops import ForwardContext, GroupContext


def batch(
    news: list[int], contexts: list[int], block: int = 4, window: int | None = None
) -> ForwardContext:
    """Lay sequences out with pages of their own; page ids are scattered."""
    ids = list(range(1, 200))
    random.Random(0).shuffle(ids)
    starts, slots, positions = [0], [], []
    width = max(-(-context // block) for context in contexts)
    tables = torch.zeros(len(news), width, dtype=torch.int32)
    for row, (new, context) in enumerate(zip(news, contexts, strict=True)):
        pages = [ids.pop() for _ in range(-(-context // block))]
        tables[row, : len(pages)] = torch.tensor(pages, dtype=torch.int32)
        starts.append(starts[-1] + new)
        for position in range(context - new, context):
            positions.append(position)
            slots.append(pages[position // block] * block + position % block)
    return ForwardContext(
        input_ids=torch.arange(starts[-1]),
        positions=torch.tensor(positions),
        query_starts=starts,
        context_lens=contexts,
        num_decodes=sum(new == 1 for new in news),
        groups=[GroupContext(tables, torch.tensor(slots), window)],
        logit_rows=torch.tensor([0]),
    )


def test_decodes_share_a_rectangle_and_chunks_of_other_lengths_do_not() -> None:
    rectangles = cut(batch([1, 1, 5, 3, 5], [10, 12, 5, 3, 8]))
    assert [(r.sequences, r.num_new) for r in rectangles] == [((0, 1), 1), ((3,), 3), ((2, 4), 5)]


def test_short_and_long_pasts_are_parted() -> None:
    contexts = [4, 5, 5, 300, 310, 6, 4]
    rectangles = cut(batch([1] * 7, contexts))
    assert sorted(i for r in rectangles for i in r.sequences) == list(range(7))
    assert len(rectangles) == 2
    for r in rectangles:
        assert len(r.sequences) * r.longest <= MAX_PADDING * sum(r.context_lens)


@pytest.mark.parametrize("seed", range(5))
def test_rectangles_cover_every_token_once(seed: int) -> None:
    rng = random.Random(seed)
    news = [rng.choice((1, 1, 1, 2, 7)) for _ in range(9)]
    ctx = batch(news, [new + rng.randint(0, 40) for new in news])
    covered = torch.cat([token_rows(ctx, r).flatten() for r in cut(ctx)])
    assert covered.sort().values.tolist() == list(range(ctx.num_tokens))


def test_padding_is_on_the_left() -> None:
    visible = padding_mask(Rectangle((0, 1), 1, (2, 4)), torch.device("cpu"))
    assert visible is not None
    assert visible.int().tolist() == [[0, 0, 1, 1], [1, 1, 1, 1]]
    assert padding_mask(Rectangle((0, 1), 1, (4, 4)), torch.device("cpu")) is None


@pytest.mark.parametrize("window", [None, 3, 6])
@pytest.mark.parametrize("num_new", [1, 5])
def test_rows_are_those_of_the_block_tables(num_new: int, window: int | None) -> None:
    contexts = [6, 11, 13]
    ctx = batch([num_new] * 3, contexts, window=window)
    rectangle = Rectangle((0, 1, 2), num_new, (6, 11, 13))
    rows = group_rows(ctx, rectangle, 0, 4)
    first = 0 if window is None else max(13 - num_new - window + 1, 0)
    assert rows.first == first
    for index, context in enumerate(contexts):
        for column in range(first, 13):
            position = column - (13 - context)
            page, offset = (int(x[index, column - first]) for x in (rows.pages, rows.offsets))
            if position < 0:
                assert page == 0
            else:
                assert page == int(ctx.groups[0].block_tables[index, position // 4])
                assert offset == position % 4
    # New tokens are the last columns: what is written is what is read there.
    assert torch.equal(rows.new_pages, rows.pages[:, -num_new:])
    assert torch.equal(rows.new_offsets, rows.offsets[:, -num_new:])
