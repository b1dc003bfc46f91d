"""The C++ attention: accuracy, batch invariance by bits, unreadable rows, bad arguments."""

from __future__ import annotations

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from infopt.ops.cpu import load_attention

# Worst |error| for queries, keys and values of unit variance, against float64.
BOUND_F32 = 2e-6
# In bfloat16 the result is rounded to 8 bits, and so are the softmax weights of long prompts.
RELATIVE_BF16 = 2**-8

MIXED = [(1, 1), (17, 1), (300, 1), (129, 1), (1, 1), (5, 5), (300, 37), (256, 130), (131, 2)]


@pytest.fixture
def attention(cpu_isa):
    return load_attention()


def assert_close(batch, op, bound=BOUND_F32, **options):
    out, expected = batch.attend(op, **options), batch.dense(**options)
    assert out.dtype == batch.q.dtype
    error = (out.double() - expected).abs()
    if out.dtype == torch.bfloat16:
        bound = bound + RELATIVE_BF16 * (expected.abs() + batch.dense(**options, absolute=True))
    assert (error <= bound).all(), float((error - bound).max())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("window", [None, 1, 7, 64, 200])
@pytest.mark.parametrize("softcap", [None, 5.0])
def test_equals_dense_attention(attention, make_batch, dtype, window, softcap):
    assert_close(make_batch(MIXED, window=window, dtype=dtype), attention, softcap=softcap)


@pytest.mark.parametrize("head_dim", [16, 48, 64, 80, 128, 256])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_every_head_dim(attention, make_batch, head_dim, dtype):
    batch = make_batch(MIXED, head_dim=head_dim, dtype=dtype)
    assert_close(batch, attention, scale=head_dim**-0.5)


@pytest.mark.parametrize("block_size", [1, 5, 16, 48, 128, 256, 300])
def test_every_block_size(attention, make_batch, block_size):
    """The same tokens in other pages give the same bits."""
    out = make_batch(MIXED, block_size=block_size, window=100).attend(attention)
    assert torch.equal(out, make_batch(MIXED, window=100).attend(attention))


@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(data=st.data())
def test_random_batches(attention, make_batch, data):
    lengths = data.draw(st.lists(st.integers(1, 400), min_size=1, max_size=5))
    new = [data.draw(st.sampled_from([1, 1, length, (length + 1) // 2])) for length in lengths]
    sequences = sorted(zip(lengths, new, strict=True), key=lambda s: s[1] > 1)
    num_kv_heads = data.draw(st.sampled_from([1, 2, 3]))
    batch = make_batch(
        sequences,
        num_kv_heads=num_kv_heads,
        num_heads=num_kv_heads * data.draw(st.sampled_from([1, 2, 3, 5, 8])),
        head_dim=data.draw(st.sampled_from([16, 32, 64, 112])),
        block_size=data.draw(st.sampled_from([3, 16, 32])),
        window=data.draw(st.sampled_from([None, 3, 50, 128])),
        dtype=data.draw(st.sampled_from([torch.float32, torch.bfloat16])),
        seed=data.draw(st.integers(0, 2**20)),
    )
    assert_close(batch, attention, softcap=data.draw(st.sampled_from([None, 20.0])))


def test_large_scores(attention, make_batch):
    """Weights underflow, the maximum is far from zero; scores near 1,000 keep 3 decimals."""
    assert_close(make_batch(MIXED), attention, scale=40.0, bound=5e-4)


@pytest.mark.parametrize("window", [None, 90])
@pytest.mark.parametrize("num_threads", [1, 2, 5])
def test_bits_do_not_depend_on_the_batch(attention, make_batch, set_threads, window, num_threads):
    """A row's bits are the same alone, batched, in chunks, as decode and with any threads."""
    heads = {"num_heads": 9, "num_kv_heads": 3, "window": window}
    length = 430
    data = [tuple(torch.randn(length, h, 64) for h in (9, 3, 3)) for _ in range(8)]
    set_threads(1)
    whole = make_batch([(length, length)], data=data[:1], **heads).attend(attention)
    set_threads(num_threads)
    for chunk in (length, 16, 101, 257):
        for end in range(chunk, length + chunk, chunk):
            end = min(end, length)  # noqa: PLW2901
            begin = (end - 1) // chunk * chunk
            sequences = [(end, end - begin), (200, 200), (77, 5)]
            if end - begin == 1:
                sequences = sequences[:1]
            out = make_batch(sequences, data=data, **heads).attend(attention)
            assert torch.equal(out[: end - begin], whole[begin:end])
    for at in (1, 2, 31, 128, 129, 256, 257, 389, 430):
        alone = make_batch([(at, 1)], data=data, **heads).attend(attention)
        assert torch.equal(alone[0], whole[at - 1])
        many = make_batch([(at, 1)] + [(9 * i, 1) for i in range(1, 8)], data=data, **heads)
        assert torch.equal(many.attend(attention)[0], whole[at - 1])


def test_null_and_unwritten_rows_do_not_leak(attention, make_batch):
    """Pins a fault of fused kernels: 0 * NaN of a masked row reached the output.

    All rows that no query may read are NaN in these batches, and so is the null page.
    """
    for window in (None, 20):
        batch = make_batch(MIXED, window=window)
        assert batch.pages.keys[0].isnan().all()
        assert not batch.attend(attention).isnan().any()


def test_a_later_row_of_the_chunk_does_not_leak(attention, make_batch):
    batch = make_batch([(40, 40)])
    clean = batch.attend(attention)
    page = int(batch.group.block_tables[0, 1])
    batch.pages.keys[page, :, 9] = float("nan")
    batch.pages.values[page, :, 9] = float("inf")
    assert torch.equal(batch.attend(attention)[:25], clean[:25])


def test_evicted_rows_are_counted_within_what_is_left(attention, make_batch):
    batch = make_batch(MIXED)
    assert torch.equal(batch.evicted(1000).attend(attention), batch.attend(attention))


def test_empty_batch(attention, make_batch):
    assert make_batch([]).attend(attention).shape == (0, 256)


def test_strided_tables(attention, make_batch):
    batch = make_batch(MIXED)
    wide = torch.zeros(len(MIXED), 50, dtype=torch.int32)
    wide[:, : batch.group.block_tables.shape[1]] = batch.group.block_tables
    expected = batch.attend(attention)
    batch.group.block_tables = wide[:, :40]
    assert torch.equal(batch.attend(attention), expected)


def _with(batch, **changes):
    """Set attributes of the batch, its context or its group, wherever the name exists."""
    for name, value in changes.items():
        target = next(x for x in (batch, batch.ctx, batch.group) if hasattr(x, name))
        setattr(target, name, value)
    return batch


def _pages(batch, **changes):
    return _with(batch, pages=batch.pages._replace(**changes))


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        (lambda b: _with(b, q=b.q.double()), TypeError, "q must be float32 or bfloat16"),
        (lambda b: _with(b, q=b.q.bfloat16()), TypeError, "keys must be"),
        (lambda b: _with(b, q=b.q[:, :3]), ValueError, "contiguous"),
        (lambda b: _with(b, q=b.q[:, :3].contiguous()), ValueError, "cannot share"),
        (lambda b: _with(b, q=b.q[..., :48].contiguous()), ValueError, "head_dim"),
        (lambda b: _with(b, q=b.q.flatten(1)), ValueError, "3 dimensions"),
        (lambda b: _with(b, q=b.q.to("meta")), ValueError, "on the CPU"),
        (lambda b: _with(b, q=b.q.clone().requires_grad_()), ValueError, "requires grad"),
        (lambda b: _with(b, positions=b.ctx.positions[1:]), ValueError, "positions"),
        (lambda b: _with(b, positions=b.ctx.positions.int()), TypeError, "positions"),
        (lambda b: _with(b, positions=-b.ctx.positions), IndexError, "negative"),
        (lambda b: _with(b, block_tables=b.group.block_tables.long()), TypeError, "block_tables"),
        (lambda b: _with(b, block_tables=b.group.block_tables[:2]), ValueError, "rows"),
        (lambda b: _with(b, block_tables=b.group.block_tables + 999), IndexError, "holds page"),
        (lambda b: _with(b, query_starts=[0, 1, 5]), ValueError, "sequences"),
        (
            lambda b: _pages(b, values=b.pages.values[:1]),
            ValueError,
            "values",
        ),
        (lambda b: _pages(b, keys=b.pages.keys.transpose(2, 3)), ValueError, "contiguously"),
    ],
)
def test_bad_arguments_raise(attention, make_batch, change, error, message):
    batch = make_batch([(20, 1), (30, 5), (30, 5)])
    with pytest.raises(error, match=message):
        change(batch).attend(attention)
