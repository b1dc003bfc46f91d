"""Batches over scattered pages, dense float64 attention, and the instruction sets to test."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import pytest
import torch

from infopt.ops.context import ForwardContext, GroupContext, KVPages
from infopt.ops.cpu.isa import INSTRUCTION_SETS, cpu_features, current_isa


@dataclass
class PagedBatch:
    """A mixed batch with its keys and values both in pages and as plain tensors."""

    q: torch.Tensor
    pages: KVPages
    ctx: ForwardContext
    group: GroupContext
    keys: list[torch.Tensor]
    values: list[torch.Tensor]

    def attend(self, op: Callable[..., torch.Tensor], scale=0.125, softcap=None) -> torch.Tensor:
        """Run an attention op on the batch."""
        return op(self.q, self.pages, self.ctx, self.group, scale, softcap)

    def evicted(self, num_rows: int) -> PagedBatch:
        """Return the batch as one whose tokens stand far behind the rows that are left of them."""
        ctx = replace(
            self.ctx,
            positions=self.ctx.positions + num_rows,
            context_lens=[length + num_rows for length in self.ctx.context_lens],
        )
        lens = list(self.ctx.context_lens)
        group = replace(self.group, rows=self.ctx.positions, row_lens=lens)
        return replace(self, ctx=replace(ctx, groups=[group]), group=group)

    def dense(self, scale=0.125, softcap=None, *, absolute=False) -> torch.Tensor:
        """The same in float64, sequence by sequence, over a full score matrix.

        With ``absolute`` of the absolute values: what rounding errors are relative to.
        """
        starts = self.ctx.query_starts
        rows = [
            dense_attention(
                self.q[begin:end],
                self.keys[i],
                self.values[i].abs() if absolute else self.values[i],
                self.ctx.positions[begin:end],
                self.group.window,
                scale,
                softcap,
            )
            for i, (begin, end) in enumerate(pairwise(starts))
        ]
        return torch.cat(rows).flatten(1)


def dense_attention(q, keys, values, positions, window, scale, softcap):
    """Causal attention of ``(n, heads, dim)`` queries to ``(m, kv_heads, dim)`` keys, float64."""
    share = q.shape[1] // keys.shape[1]
    keys = keys.double().repeat_interleave(share, dim=1)
    values = values.double().repeat_interleave(share, dim=1)
    scores = torch.einsum("nhd,mhd->hnm", q.double(), keys) * scale
    if softcap is not None:
        scores = torch.tanh(scores / softcap) * softcap
    j, i = torch.arange(keys.shape[0]), positions.unsqueeze(1)
    visible = j <= i
    if window is not None:
        visible &= j > i - window
    scores = scores.masked_fill(~visible, float("-inf"))
    return torch.einsum("hnm,mhd->nhd", scores.softmax(-1), values)


def _pool(num_pages, num_kv_heads, block_size, head_dim, dtype) -> KVPages:
    """Pages as views into a pool with other bytes between them; all memory is NaN."""
    size = num_kv_heads * block_size * head_dim
    stride = 2 * size + 32
    pool = torch.full((num_pages * stride,), float("nan"), dtype=dtype)
    shape = (num_pages, num_kv_heads, block_size, head_dim)
    strides = (stride, block_size * head_dim, head_dim, 1)
    return KVPages(pool.as_strided(shape, strides, 0), pool.as_strided(shape, strides, size))


def _make_batch(
    sequences: list[tuple[int, int]],
    *,
    num_heads: int = 4,
    num_kv_heads: int = 2,
    head_dim: int = 64,
    block_size: int = 16,
    window: int | None = None,
    dtype: torch.dtype = torch.float32,
    seed: int = 0,
    data: Sequence[tuple[torch.Tensor, ...]] | None = None,
) -> PagedBatch:
    """Make a batch of ``(context length, new tokens)``; single-token sequences must come first.

    ``data`` gives q, k, v of whole sequences, ``(length, heads, dim)``; otherwise they are random.
    Rows of pages that no query may read stay NaN; pages behind the window are null pages.
    """
    random = torch.Generator().manual_seed(seed)
    heads = (num_heads, num_kv_heads, num_kv_heads)
    source = data or [
        tuple(torch.randn(length, h, head_dim, generator=random).to(dtype) for h in heads)
        for length, _ in sequences
    ]
    num_blocks = [-(-length // block_size) for length, _ in sequences]
    pages = _pool(sum(num_blocks) + 2, num_kv_heads, block_size, head_dim, dtype)
    free = (torch.randperm(sum(num_blocks) + 1, generator=random) + 1).tolist()
    tables = torch.zeros(len(sequences), max(num_blocks, default=0) + 1, dtype=torch.int32)
    positions, starts, queries = [], [0], []
    for i, (length, num_new) in enumerate(sequences):
        q, k, v = (part[:length] for part in source[i])
        oldest = 0 if window is None else max(0, length - num_new - window + 1)
        for block in range(oldest // block_size, num_blocks[i]):
            page = tables[i, block] = free.pop()
            rows = slice(block * block_size, min(length, (block + 1) * block_size))
            count = rows.stop - rows.start
            pages.keys[page, :, :count] = k[rows].transpose(0, 1)
            pages.values[page, :, :count] = v[rows].transpose(0, 1)
        positions.append(torch.arange(length - num_new, length))
        queries.append(q[length - num_new :])
        starts.append(starts[-1] + num_new)
    no_tokens = torch.zeros(0, dtype=torch.int64)
    ctx = ForwardContext(
        input_ids=torch.zeros(starts[-1], dtype=torch.int64),
        positions=torch.cat([no_tokens, *positions]),
        query_starts=starts,
        context_lens=[length for length, _ in sequences],
        num_decodes=_leading_decodes(sequences),
        groups=[],
        logit_rows=no_tokens,
    )
    group = GroupContext(block_tables=tables, slots=no_tokens, window=window)
    ctx.groups.append(group)
    empty = torch.zeros(0, num_heads, head_dim, dtype=dtype)
    keys, values = ([part[j] for part in source] for j in (1, 2))
    return PagedBatch(torch.cat([empty, *queries]), pages, ctx, group, keys, values)


def _leading_decodes(sequences: list[tuple[int, int]]) -> int:
    count = 0
    for _, num_new in sequences:
        if num_new != 1:
            break
        count += 1
    return count


@pytest.fixture(scope="session")
def make_batch() -> Callable[..., PagedBatch]:
    return _make_batch


@pytest.fixture
def set_threads() -> Iterator[Callable[[int], None]]:
    before = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(before)


def _isa_params() -> list:
    here = current_isa().name
    params = [pytest.param(here)]
    for isa in INSTRUCTION_SETS.values():
        if isa.name != here and isa.features <= cpu_features():
            # Each needs a compilation of its own, and runs the same source.
            params.append(pytest.param(isa.name, marks=pytest.mark.slow))
    return params


@pytest.fixture(params=_isa_params())
def cpu_isa(request, monkeypatch) -> str:
    """Choose the instruction set of the C++ kernels for one test."""
    from infopt.ops.cpu.build import why_no_extension
    from infopt.ops.cpu.isa import ENVIRONMENT_VARIABLE

    monkeypatch.setenv(ENVIRONMENT_VARIABLE, request.param)
    reason = why_no_extension()
    if reason is not None:
        pytest.skip(reason)
    return request.param
