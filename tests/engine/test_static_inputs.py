"""Inputs at fixed addresses: what a batch leaves behind, and what padding looks like."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch

from infopt.engine.static_inputs import InputMemory, InputShape, StaticInputs
from infopt.ops import ForwardContext, GroupContext

CPU = torch.device("cpu")
WINDOWS = [None, 24]


def batch(num_rows: int, num_pages: int, value: int, logit_rows: list[int]) -> ForwardContext:
    """A batch whose every number is derived from a value."""
    rows = torch.arange(num_rows) + value
    tables = torch.full((num_rows, num_pages), value, dtype=torch.int32)
    return ForwardContext(
        input_ids=rows,
        positions=rows + 100,
        query_starts=list(range(num_rows + 1)),
        context_lens=[101 + value] * num_rows,
        num_decodes=num_rows,
        groups=[GroupContext(tables + i, rows + 1000 * (i + 1), w) for i, w in enumerate(WINDOWS)],
        logit_rows=torch.tensor(logit_rows),
    )


@pytest.fixture
def memory() -> InputMemory:
    return InputMemory(InputShape(8, 64), WINDOWS, CPU)


def test_a_batch_is_taken_over_and_the_rest_is_padding(memory: InputMemory) -> None:
    """Pins: rows of an earlier, larger batch that wrote into pages of somebody else."""
    inputs = StaticInputs(InputShape(4, 32), memory, 16)
    inputs.fill(batch(4, 32, 7, [0, 1, 2, 3]))
    inputs.fill(batch(2, 3, 5, [1]))
    ctx = inputs.context
    assert ctx.input_ids.tolist() == [5, 6, 0, 0]
    assert ctx.positions.tolist() == [105, 106, 0, 0]
    assert ctx.logit_rows.tolist() == [1, 0, 0, 0]
    for i, group in enumerate(ctx.groups):
        assert group.slots.tolist() == [1005 + 1000 * i, 1006 + 1000 * i, 0, 0]
        assert group.block_tables.shape == (4, 32)
        assert torch.equal(group.block_tables[:2, :3], torch.full((2, 3), 5 + i).int())
        assert group.block_tables[:2, 3:].eq(0).all()
        assert group.block_tables[2:].eq(0).all()
        assert group.window == WINDOWS[i]


def test_a_bucket_fills_its_own_fields_after_another_used_the_memory(memory: InputMemory) -> None:
    small = StaticInputs(InputShape(1, 32), memory, 16)
    large = StaticInputs(InputShape(8, 64), memory, 16)
    small.fill(batch(1, 2, 3, [0]))
    large.fill(batch(8, 64, 9, list(range(8))))
    small.fill(batch(1, 1, 4, [0]))
    assert small.context.input_ids.tolist() == [4]
    assert small.context.groups[1].block_tables.tolist() == [[5, *[0] * 31]]


def test_fields_are_aligned_and_do_not_overlap(memory: InputMemory) -> None:
    ctx = StaticInputs(InputShape(8, 64), memory, 16).context
    fields = [ctx.input_ids, ctx.positions, ctx.logit_rows]
    fields += [t for g in ctx.groups for t in (g.slots, g.block_tables)]
    spans = sorted((t.data_ptr(), t.data_ptr() + t.nbytes) for t in fields)
    assert all(end <= start for (_, end), (start, _) in pairwise(spans))
    assert spans[-1][1] <= memory.device.data_ptr() + memory.device.nbytes
    assert all((start - memory.device.data_ptr()) % 256 == 0 for start, _ in spans)


def test_lengths_are_a_bound_for_every_step_of_the_bucket(memory: InputMemory) -> None:
    """What a kernel launches follows from them, so they must not be those of one step."""
    ctx = StaticInputs(InputShape(4, 32), memory, 16).context
    assert ctx.context_lens == [512] * 4
    assert (ctx.num_seqs, ctx.num_decodes, ctx.num_tokens) == (4, 4, 4)
