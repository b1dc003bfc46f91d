"""The reference attention: dense float64 equality, windows, chunking, batch invariance."""

from __future__ import annotations

import pytest
import torch

from infopt.ops.attention import TILE, paged_attention

MIXED = [(1, 1), (17, 1), (600, 1), (5, 5), (300, 37), (520, 270)]


def assert_close(batch, bound, **options):
    out, expected = batch.attend(paged_attention, **options), batch.dense(**options)
    assert out.dtype == batch.q.dtype
    assert (out.double() - expected).abs().max() <= bound


def with_finite_pages(batch):
    """The reference multiplies masked rows by zero, so they must be finite."""
    for pages in batch.pages[:2]:
        pages.nan_to_num_(nan=0.0)
    return batch


@pytest.mark.parametrize(("dtype", "bound"), [(torch.float32, 3e-6), (torch.bfloat16, 0.02)])
@pytest.mark.parametrize("window", [None, 1, 7, TILE + 3])
@pytest.mark.parametrize("softcap", [None, 5.0])
def test_equals_dense_attention(make_batch, dtype, bound, window, softcap):
    batch = with_finite_pages(make_batch(MIXED, window=window, dtype=dtype))
    assert_close(batch, bound, softcap=softcap)


@pytest.mark.parametrize("block_size", [1, 5, 16, 256])
def test_every_block_size(make_batch, block_size):
    assert_close(with_finite_pages(make_batch(MIXED, block_size=block_size)), 3e-6)


@pytest.mark.parametrize("share", [1, 3, 8])
def test_grouped_queries(make_batch, share):
    batch = make_batch(MIXED, num_kv_heads=2, num_heads=2 * share, head_dim=32)
    assert_close(with_finite_pages(batch), 3e-6)


@pytest.mark.parametrize("chunk", [1, 3, 4, 10])
def test_chunked_window_is_exact(make_batch, chunk):
    """Pins a fault of chunked prefill: rows of a chunk saw more keys than the window allows.

    Window 4 over 10 tokens in chunks of 1, 3, 4 and 10: each token sees exactly its last four.
    """
    data = [tuple(torch.randn(10, h, 16) for h in (2, 1, 1))]
    heads = {"num_heads": 2, "num_kv_heads": 1, "head_dim": 16, "block_size": 4}
    for end in [*range(chunk, 10, chunk), 10]:
        begin = (end - 1) // chunk * chunk
        batch = make_batch([(end, end - begin)], window=4, data=data, **heads)
        assert_close(with_finite_pages(batch), 1e-5)


@pytest.mark.parametrize("length", [3, 4, 5, 12])
def test_prompts_longer_than_the_window(make_batch, length):
    """Pins a fault of one-pass prefill: early rows were starved when a prompt outgrew the window.

    The same prompt runs through a window layer and a full layer, as in families that alternate.
    """
    for window in (4, None):
        batch = with_finite_pages(make_batch([(length, length)], window=window, block_size=4))
        out = batch.attend(paged_attention)
        assert not out.isnan().any()
        assert_close(batch, 1e-5)
        assert torch.allclose(out[0].view(4, 64), batch.values[0][0].repeat_interleave(2, 0))


@pytest.mark.parametrize("window", [None, 90])
def test_bits_do_not_depend_on_the_batch(make_batch, window):
    heads = {"num_heads": 9, "num_kv_heads": 3, "window": window}
    length = 300
    data = [tuple(torch.randn(length, h, 64) for h in (9, 3, 3)) for _ in range(4)]

    def attend(sequences):
        batch = make_batch(sequences, data=data, **heads)
        return with_finite_pages(batch).attend(paged_attention)

    whole = attend([(length, length)])
    assert torch.equal(attend([(length, 101)]), whole[-101:])
    assert torch.equal(attend([(200, 150), (70, 70)])[:150], whole[50:200])
    for at in (1, 2, 129, 256, 257, 300):
        assert torch.equal(attend([(at, 1)])[0], whole[at - 1])
        assert torch.equal(attend([(at, 1), (300, 1), (5, 1), (33, 33)])[0], whole[at - 1])


def test_evicted_rows_are_counted_within_what_is_left(make_batch):
    """Only the tokens' rows decide what they see, wherever they stand."""
    batch = with_finite_pages(make_batch([(20, 1), (1, 1), (300, 1), (40, 7), (33, 33)]))
    expected = batch.attend(paged_attention)
    assert torch.equal(batch.evicted(1000).attend(paged_attention), expected)


def test_empty_batch(make_batch):
    assert make_batch([]).attend(paged_attention).shape == (0, 256)
