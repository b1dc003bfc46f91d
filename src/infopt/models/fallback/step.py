"""Cuts a flat batch into rectangles that transformers can run, and finds their rows in the pages.

Transformers runs ``(sequences, tokens)`` rectangles. Sequences with equally many new tokens share
one: their pasts are padded on the left to the longest, so that causal, window and chunk masks,
which depend on distances, hold for all of them.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from infopt.ops import ForwardContext

MAX_PADDING = 2.0
"""A rectangle may hold this many times the tokens that its sequences have."""


@dataclass(frozen=True, slots=True)
class Rectangle:
    """Sequences of a step with equally many new tokens.

    Attributes:
        sequences: Their places in the batch.
        num_new: New tokens of each.
        context_lens: Tokens visible to the last query of each, new ones included.
    """

    sequences: tuple[int, ...]
    num_new: int
    context_lens: tuple[int, ...]

    @property
    def longest(self) -> int:
        """Width of the padded past and the new tokens together."""
        return max(self.context_lens)

    @property
    def is_padded(self) -> bool:
        """Whether any past is shorter than the longest."""
        return min(self.context_lens) != self.longest


def cut(ctx: ForwardContext) -> list[Rectangle]:
    """Return rectangles that cover a batch, little padded."""
    news = [end - start for start, end in zip(ctx.query_starts, ctx.query_starts[1:], strict=False)]
    order = sorted(range(ctx.num_seqs), key=lambda i: (news[i], ctx.context_lens[i]))
    rectangles: list[list[int]] = []
    for index in order:
        if rectangles and _fits(rectangles[-1], index, news, ctx.context_lens):
            rectangles[-1].append(index)
        else:
            rectangles.append([index])
    return [
        Rectangle(tuple(r), news[r[0]], tuple(ctx.context_lens[i] for i in r)) for r in rectangles
    ]


def _fits(members: list[int], index: int, news: list[int], lens: list[int]) -> bool:
    """Whether one more, longer sequence leaves a rectangle little padded."""
    if news[members[0]] != news[index]:
        return False
    total = sum(lens[i] for i in members) + lens[index]
    return (len(members) + 1) * lens[index] <= MAX_PADDING * total


def token_rows(ctx: ForwardContext, rectangle: Rectangle) -> torch.Tensor:
    """Return the places of a rectangle's tokens in the flat batch, ``(sequences, num_new)``."""
    device = ctx.input_ids.device
    starts = torch.tensor([ctx.query_starts[i] for i in rectangle.sequences], device=device)
    return starts[:, None] + torch.arange(rectangle.num_new, device=device)


def padding_mask(rectangle: Rectangle, device: torch.device) -> torch.Tensor | None:
    """Return which columns are tokens, bool ``(sequences, longest)``; None where all are."""
    if not rectangle.is_padded:
        return None
    columns = torch.arange(rectangle.longest, device=device)
    pads = rectangle.longest - torch.tensor(rectangle.context_lens, device=device)
    return columns >= pads[:, None]


@dataclass(frozen=True, slots=True)
class GroupRows:
    """Where the visible tokens of a rectangle lie in the pages of one KV group.

    Columns count from the first visible one to the newest token.

    Attributes:
        pages: int64 ``(sequences, columns)``; padding is in the null page.
        offsets: Rows within the pages, same shape.
        new_pages, new_offsets: Those of the new tokens, ``(sequences, num_new)``.
        first: Columns in front that no query sees.
    """

    pages: torch.Tensor
    offsets: torch.Tensor
    new_pages: torch.Tensor
    new_offsets: torch.Tensor
    first: int

    def write(self, rows: torch.Tensor, new: torch.Tensor) -> None:
        """Store ``(sequences, num_new, width)`` in pages of shape ``(pages, block, width)``."""
        rows[self.new_pages, self.new_offsets] = new

    def read(self, rows: torch.Tensor) -> torch.Tensor:
        """Return ``(sequences, columns, width)``."""
        return rows[self.pages, self.offsets]


def group_rows(ctx: ForwardContext, rectangle: Rectangle, group: int, block_size: int) -> GroupRows:
    """Find the rows of one KV group.

    Args:
        ctx: The batch.
        rectangle: Which sequences of it.
        group: Index of the KV group.
        block_size: Tokens per page.
    """
    where = ctx.groups[group]
    device = where.slots.device
    first = 0
    if where.window is not None:
        first = max(rectangle.longest - rectangle.num_new - where.window + 1, 0)
    pads = rectangle.longest - torch.tensor(rectangle.context_lens, device=device)
    positions = torch.arange(first, rectangle.longest, device=device) - pads[:, None]
    is_token = positions >= 0
    positions = positions.clamp(min=0)
    sequences = torch.tensor(rectangle.sequences, device=device)
    tables = where.block_tables.index_select(0, sequences).long()
    pages = tables.gather(1, positions // block_size).where(is_token, 0)
    slots = where.slots[token_rows(ctx, rectangle)]
    return GroupRows(
        pages=pages,
        offsets=positions % block_size,
        new_pages=slots // block_size,
        new_offsets=slots % block_size,
        first=first,
    )
