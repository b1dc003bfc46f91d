"""Attention kernels by themselves: splits and their merging, row blocks, wrong arguments.

Whole batches, windows and head counts are in ``tests/ops/test_triton_ops.py``.
"""

from __future__ import annotations

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from infopt.kernels.triton_ops import attention
from infopt.kernels.triton_ops.common import KernelArgumentError

few = settings(
    max_examples=5,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
SPLIT = 64


def make_decodes(lengths, make_pages, device, dtype=torch.float32, share=2, head_dim=32, block=16):
    """Decodes with random keys and values, two key heads; rows that nobody reads are NaN."""
    torch.manual_seed(sum(lengths))
    widths = [-(-length // block) for length in lengths]
    keys, values = make_pages(sum(widths) + 1, 2, block, head_dim, dtype, fill=float("nan"))
    order = (torch.randperm(sum(widths)) + 1).tolist()
    tables = torch.zeros(len(lengths), max(widths), dtype=torch.int32)
    data = []
    for row, (length, width) in enumerate(zip(lengths, widths, strict=True)):
        parts = torch.randn(2, length, 2, head_dim, device=device).to(dtype)
        data.append(parts)
        for i in range(width):
            tables[row, i] = page = order.pop()
            for pages, part in zip((keys, values), parts, strict=True):
                rows = part[i * block : (i + 1) * block].transpose(0, 1)
                pages[page, :, : rows.shape[1]] = rows
    q = torch.randn(len(lengths), 2 * share, head_dim, device=device).to(dtype)
    positions = torch.tensor(lengths, device=device) - 1
    return q, keys, values, tables.to(device), positions, data


def run(batch, lengths, split, window=None, softcap=None):
    q, keys, values, tables, positions, _ = batch
    out = torch.full_like(q, float("nan"))
    attention.paged_attention(
        q,
        keys,
        values,
        tables,
        positions,
        out,
        scale=0.2,
        softcap=softcap,
        window=window,
        num_decodes=len(lengths),
        max_context=max(lengths),
        split_tokens=split,
    )
    return out


def dense(batch, window=None, softcap=None):
    q, *_, data = batch
    rows = []
    for query, parts in zip(q.double(), data, strict=True):
        share = query.shape[0] // parts.shape[2]
        seen = parts if window is None else parts[:, -window:]
        k, v = seen.double().repeat_interleave(share, 2)
        scores = torch.einsum("hd,nhd->hn", query, k) * 0.2
        if softcap is not None:
            scores = softcap * torch.tanh(scores / softcap)
        rows.append(torch.einsum("hn,nhd->hd", scores.softmax(-1), v))
    return torch.stack(rows)


@few
@given(
    lengths=st.lists(st.integers(1, 3 * SPLIT), min_size=1, max_size=3),
    window=st.sampled_from([None, 1, 20, 100]),
    softcap=st.sampled_from([None, 3.0]),
)
def test_splits_equal_float64(lengths, window, softcap, device, make_pages):
    batch = make_decodes(lengths, make_pages, device)
    out = run(batch, lengths, SPLIT, window, softcap)
    assert (out.double() - dense(batch, window, softcap)).abs().max() <= 4e-6


def test_one_split_has_the_bits_of_none(device, make_pages, exact_dot):
    """Whether others in the batch need splits must not change a short sequence."""
    batch = make_decodes([40, 64, 1], make_pages, device)
    assert torch.equal(run(batch, [40, 64, 1], SPLIT), run(batch, [40, 64, 1], None))


def test_split_bits_do_not_depend_on_neighbours(device, make_pages, exact_dot):
    lengths = [150, 3, 90]
    q, keys, values, tables, positions, data = make_decodes(lengths, make_pages, device)
    whole = run((q, keys, values, tables, positions, data), lengths, SPLIT)
    for i in range(3):
        alone = (q[i : i + 1], keys, values, tables[i : i + 1], positions[i : i + 1], None)
        assert torch.equal(run(alone, lengths[i : i + 1], SPLIT), whole[i : i + 1])


def test_merging_many_splits(device, make_pages):
    """More splits than one step of the merge takes."""
    lengths = [32 * (2 * attention.MERGE_SPLITS + 3)]
    batch = make_decodes(lengths, make_pages, device, share=1, head_dim=16)
    out = run(batch, lengths, 32)
    assert (out.double() - dense(batch)).abs().max() <= 4e-6


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_splits_in_16_bits(dtype, device, make_pages):
    lengths = [150, 7]
    batch = make_decodes(lengths, make_pages, device, dtype)
    out = run(batch, lengths, SPLIT)
    assert (out.double() - dense(batch)).abs().max() <= 4 * torch.finfo(dtype).eps


def test_row_blocks_cover_each_chunk_once(device):
    shape = attention.block_shape(torch.float32, 64, 3, decode=False)
    starts = [0, 1, 2, 9, 9, 30]
    blocks = attention.plan_prefill(starts, 2, 3, shape, device)
    step = shape.rows // 3
    covered = []
    for sequence, token, count in zip(
        blocks.sequence.tolist(), blocks.token.tolist(), blocks.count.tolist(), strict=True
    ):
        assert 1 <= count <= step
        assert starts[sequence] <= token and token + count <= starts[sequence + 1]
        covered += range(token, token + count)
    assert covered == list(range(2, 30))


def test_tanh_is_exact_near_zero(device, make_pages):
    """A cap far above the scores must leave them as they are: tanh(x) ~ x - x^3 / 3."""
    batch = make_decodes([50], make_pages, device)
    out = run(batch, [50], None, softcap=1e4)
    assert (out.double() - dense(batch, softcap=1e4)).abs().max() <= 4e-6


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("q", lambda t: t.double(), "q must be"),
        ("q", lambda t: t.half(), "must be float16"),
        ("q", lambda t: t[:, :3].contiguous(), "cannot share 2 key heads"),
        ("q", lambda t: t[:, ::2], "q must be contiguous"),
        ("q", lambda t: t[..., :16].contiguous(), "keys must have shape"),
        ("keys", lambda t: t.transpose(2, 3), "values must have shape|within a page"),
        ("values", lambda t: t[:1], "values must have shape"),
        ("block_tables", lambda t: t.long(), "block_tables must be int32"),
        ("block_tables", lambda t: t.t().contiguous().t(), "contiguous rows"),
        ("positions", lambda t: t.int(), "positions must be int64"),
        ("positions", lambda t: t[:1], "positions must have shape"),
        ("positions", lambda t: t.to("meta"), "positions must be on"),
        ("out", lambda t: t[:1], "out must have shape"),
        ("window", lambda _: 0, "window must be at least 1"),
        ("softcap", lambda _: 0.0, "softcap must be above 0"),
        ("split_tokens", lambda _: 100, "multiple of the tile"),
        ("max_context", lambda _: 0, "max_context must be at least 1"),
    ],
)
def test_wrong_arguments_raise(name, change, message, device, make_pages):
    q, keys, values, tables, positions, _ = make_decodes([40, 20], make_pages, device)
    good = {
        "q": q,
        "keys": keys,
        "values": values,
        "block_tables": tables,
        "positions": positions,
        "out": torch.empty_like(q),
        "scale": 0.2,
        "window": None,
        "softcap": None,
        "num_decodes": 2,
        "max_context": 40,
        "split_tokens": SPLIT,
    }
    with pytest.raises(KernelArgumentError, match=message):
        attention.paged_attention(**(good | {name: change(good[name])}))


def test_wide_heads_raise(device, make_pages):
    q, *rest, _ = make_decodes([3], make_pages, device, head_dim=288)
    with pytest.raises(KernelArgumentError, match="the limit is 256"):
        attention.paged_attention(q, *rest, torch.empty_like(q), scale=1.0, num_decodes=1)
