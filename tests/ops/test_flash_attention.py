"""What flash-attn is called with, through a stub that checks shapes and computes by hand."""

from __future__ import annotations

import dataclasses
import sys
import types
from itertools import pairwise

import pytest
import torch

from infopt.ops import gpu
from infopt.ops.attention import paged_attention
from infopt.ops.dispatch import OpTarget
from infopt.ops.gpu import flash

SEQUENCES = [(1, 1), (300, 1), (40, 9), (520, 520)]


def _attend(q, keys, values, options):
    """Attend from the last rows of a context, ``(n, heads, dim)`` to ``(m, kv heads, dim)``."""
    share = q.shape[1] // keys.shape[1]
    k, v = (part.float().repeat_interleave(share, 1) for part in (keys, values))
    scores = torch.einsum("nhd,mhd->hnm", q.float(), k) * options["softmax_scale"]
    if options["softcap"]:
        scores = options["softcap"] * torch.tanh(scores / options["softcap"])
    row = torch.arange(k.shape[0] - q.shape[0], k.shape[0]).unsqueeze(1)
    column = torch.arange(k.shape[0])
    left, right = options["window_size"]
    hidden = column > row + (right if right >= 0 else 0)
    if left >= 0:
        hidden |= column < row - left
    weights = scores.masked_fill(hidden, float("-inf")).softmax(-1)
    return torch.einsum("hnm,mhd->nhd", weights, v).to(q.dtype)


def _rows(cache, table, length):
    pages = [cache[page] for page in table.tolist()]
    return torch.cat(pages)[:length]


def _check_cache(k_cache, v_cache, block_table):
    assert k_cache.shape == v_cache.shape
    assert k_cache.shape[1] % 256 == 0, "flash-attn wants pages of a multiple of 256"
    assert k_cache.stride(-1) == v_cache.stride(-1) == 1
    assert block_table.dtype == torch.int32
    assert block_table.stride(-1) == 1


def flash_attn_with_kvcache(q, k_cache, v_cache, *, cache_seqlens, block_table, causal, **options):
    _check_cache(k_cache, v_cache, block_table)
    assert causal
    assert q.ndim == 4 and q.shape[1] == 1
    assert cache_seqlens.dtype == torch.int32 and cache_seqlens.shape == (q.shape[0],)
    rows = [
        _attend(q[i], _rows(k_cache, table, n), _rows(v_cache, table, n), options)
        for i, (table, n) in enumerate(zip(block_table, cache_seqlens.tolist(), strict=True))
    ]
    return torch.stack(rows)


def flash_attn_varlen_func(
    q,
    k,
    v,
    *,
    cu_seqlens_q,
    cu_seqlens_k,
    max_seqlen_q,
    max_seqlen_k,
    block_table,
    causal,
    **options,
):
    _check_cache(k, v, block_table)
    assert causal
    assert cu_seqlens_q.dtype == cu_seqlens_k.dtype == torch.int32
    starts, contexts = cu_seqlens_q.tolist(), cu_seqlens_k.diff().tolist()
    assert starts[-1] == q.shape[0]
    assert max_seqlen_q == max(b - a for a, b in pairwise(starts))
    assert max_seqlen_k == max(contexts)
    rows = [
        _attend(q[starts[i] : starts[i + 1]], _rows(k, table, n), _rows(v, table, n), options)
        for i, (table, n) in enumerate(zip(block_table, contexts, strict=True))
    ]
    return torch.cat(rows)


@pytest.fixture
def attention(monkeypatch):
    stub = types.ModuleType("flash_attn")
    stub.flash_attn_with_kvcache = flash_attn_with_kvcache
    stub.flash_attn_varlen_func = flash_attn_varlen_func
    monkeypatch.setitem(sys.modules, "flash_attn", stub)
    return gpu.load_flash_attention()


@pytest.mark.parametrize("window", [None, 30])
@pytest.mark.parametrize("softcap", [None, 4.0])
@pytest.mark.parametrize("sequences", [SEQUENCES, SEQUENCES[:2], SEQUENCES[2:]])
def test_calls_give_the_result_of_the_reference(attention, make_batch, window, softcap, sequences):
    batch = make_batch(sequences, block_size=256, window=window, dtype=torch.bfloat16)
    for pages in batch.pages[:2]:
        pages.nan_to_num_(0.0)  # the engine's pages are finite; the reference needs that
    out = batch.attend(attention, softcap=softcap)
    expected = batch.attend(paged_attention, softcap=softcap)
    assert out.shape == expected.shape
    assert (out.float() - expected.float()).abs().max() <= 0.03


GOOD = OpTarget(torch.device("cuda"), torch.bfloat16, "auto", head_dim=128, block_size=256)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"device": torch.device("cpu")}, "needs a CUDA device"),
        ({"dtype": torch.float32}, "torch.float32 is not bfloat16 or float16"),
        ({"block_size": 16}, "block_size is 16, it needs a multiple of 256"),
        ({"block_size": None}, "block_size is not given, it needs a multiple of 256"),
        ({"head_dim": 100}, "head_dim 100 is not a multiple of 8 up to 256"),
        ({"head_dim": 512}, "head_dim 512 is not a multiple of 8 up to 256"),
        ({}, None),
    ],
)
def test_reasons(monkeypatch, change, reason):
    monkeypatch.setattr(flash, "_is_installed", lambda: True)
    assert gpu.why_not_flash(dataclasses.replace(GOOD, **change)) == reason


def test_not_installed(monkeypatch):
    monkeypatch.setattr(flash, "_is_installed", lambda: False)
    assert gpu.why_not_flash(GOOD) == "flash-attn is not installed"
