"""Norm, rotation and page write in Triton against float64."""

from __future__ import annotations

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from infopt.kernels.triton_ops.common import KernelArgumentError
from infopt.kernels.triton_ops.rotary import rotary_and_write

few = settings(
    max_examples=5,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)


def _norm(x, weight):
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6) * weight.double()


def _rotate(x, cos, sin):
    a, b = x.chunk(2, -1)
    return torch.cat([a * cos - b * sin, b * cos + a * sin], -1)


@few
@given(
    tokens=st.integers(1, 6),
    heads=st.sampled_from([(1, 1), (3, 1), (4, 2), (9, 3)]),
    half=st.sampled_from([1, 8, 12, 32, 40]),
    block=st.sampled_from([1, 5, 16]),
    with_norms=st.booleans(),
)
def test_equals_float64(
    tokens, heads, half, block, with_norms, dtype, device, make_pages, assert_close
):
    torch.manual_seed(tokens * half)
    num_heads, num_kv = heads
    width = 2 * half
    qkv = torch.randn(tokens, (num_heads + 2 * num_kv) * width, device=device).to(dtype)
    angles = torch.rand(tokens, half, device=device) * 6
    cos, sin = angles.cos().to(dtype), angles.sin().to(dtype)
    norms = (*torch.randn(2, width, device=device), 1e-6) if with_norms else None
    keys, values = make_pages(tokens + 2, num_kv, block, width, dtype, fill=7.0)
    slots = torch.randperm((tokens + 1) * block)[:tokens].add(block).to(device)
    queries = rotary_and_write(qkv, cos, sin, keys, values, slots, norms)
    parts = qkv.double().view(tokens, -1, width).split([num_heads, num_kv, num_kv], dim=1)
    q, k, v = parts
    if norms is not None:
        q, k = _norm(q, norms[0]), _norm(k, norms[1])
    turn = (cos.double().unsqueeze(1), sin.double().unsqueeze(1))
    ulps = 8 if dtype == torch.float32 else 1
    page, offset = slots // block, slots % block
    for got, x in ((queries, q), (keys[page, :, offset], k)):
        size = x.abs() + x.roll(half, -1).abs()
        assert_close(got, _rotate(x, *turn), size=size, ulps=ulps)
    assert torch.equal(values[page, :, offset].double(), v)
    keys[page, :, offset] = values[page, :, offset] = 7.0
    assert (keys == 7.0).all() and (values == 7.0).all(), "another slot was written"


def test_bits_do_not_depend_on_neighbours(device, make_pages):
    qkv, cos, sin = (torch.randn(7, n, device=device) for n in (8 * 32, 16, 16))
    slots = torch.arange(7, device=device)
    whole = rotary_and_write(qkv, cos, sin, *make_pages(2, 2, 8, 32, torch.float32), slots)
    keys, values = make_pages(2, 2, 8, 32, torch.float32)
    alone = rotary_and_write(qkv[3:4], cos[3:4], sin[3:4], keys, values, slots[3:4])
    assert torch.equal(alone, whole[3:4])


def test_empty_batch(device, make_pages):
    empty = torch.empty(0, 8 * 32, device=device), *torch.empty(2, 0, 16, device=device)
    keys, values = make_pages(2, 2, 8, 32, torch.float32)
    slots = torch.empty(0, dtype=torch.int64, device=device)
    assert rotary_and_write(*empty, keys, values, slots).shape == (0, 4, 32)


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("qkv", lambda t: t[:, :-1], "qkv has width"),
        ("qkv", lambda t: t[:, : 4 * 32], "qkv has width"),
        ("qkv", lambda t: t.double(), "qkv must be"),
        ("cos", lambda t: t[:, :8], "cos must have shape"),
        ("sin", lambda t: t.half(), "sin must be"),
        ("keys", lambda t: t.transpose(1, 2).contiguous().transpose(1, 2), "within a page"),
        ("values", lambda t: t.half(), "values must be"),
        ("values", lambda t: t[:1], "values must have shape"),
        ("slots", lambda t: t.int(), "slots must be int64"),
        ("slots", lambda t: t[:2], "slots must have shape"),
        ("slots", lambda t: t.to("meta"), "slots must be on"),
    ],
)
def test_wrong_arguments_raise(name, change, message, device, make_pages):
    keys, values = make_pages(2, 2, 8, 32, torch.float32)
    good = {
        "qkv": torch.zeros(3, 8 * 32, device=device),
        "cos": torch.zeros(3, 16, device=device),
        "sin": torch.zeros(3, 16, device=device),
        "keys": keys,
        "values": values,
        "slots": torch.zeros(3, dtype=torch.int64, device=device),
    }
    with pytest.raises(KernelArgumentError, match=message):
        rotary_and_write(**(good | {name: change(good[name])}))


def test_wrong_norms_raise(device, make_pages):
    keys, values = make_pages(2, 2, 8, 32, torch.float32)
    tables = torch.zeros(2, 3, 16, device=device)
    slots = torch.zeros(3, dtype=torch.int64, device=device)
    norms = (torch.ones(32, device=device), torch.ones(16, device=device), 1e-6)
    with pytest.raises(KernelArgumentError, match="key norm must have shape"):
        rotary_and_write(torch.zeros(3, 8 * 32, device=device), *tables, keys, values, slots, norms)
