"""The fused C++ ops (norm, activation, rotary): accuracy, batch invariance, bad arguments."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from infopt.ops import rotary as reference_rotary
from infopt.ops.context import KVPages
from infopt.ops.cpu import load_add_rms_norm, load_gated_activation, load_rotary_and_write
from infopt.ops.rotary import HeadNorms

# Worst error relative to the exact value. In float32 a few roundings; bfloat16 adds one of 8 bits.
RELATIVE = {torch.float32: 1e-6, torch.bfloat16: 2**-8}
DTYPES = [torch.float32, torch.bfloat16]
random_shapes = settings(
    max_examples=50, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


def assert_close(out, expected, factor=1.0, absolute=1e-30):
    assert out.shape == expected.shape
    error = (out.double() - expected).abs()
    bound = factor * RELATIVE[out.dtype] * expected.abs() + absolute
    assert (error <= bound).all(), float((error / bound).max())


@pytest.fixture
def add_rms_norm(cpu_isa):
    return load_add_rms_norm()


@pytest.fixture
def gated_activation(cpu_isa):
    return load_gated_activation()


@pytest.fixture
def rotary_and_write(cpu_isa):
    return load_rotary_and_write()


@random_shapes
@given(
    num_rows=st.integers(0, 70),
    size=st.integers(1, 700),
    dtype=st.sampled_from(DTYPES),
    with_residual=st.booleans(),
    seed=st.integers(0, 2**20),
)
def test_norm_equals_reference(add_rms_norm, num_rows, size, dtype, with_residual, seed):
    torch.manual_seed(seed)
    x, residual = torch.randn(2, num_rows, size).to(dtype) * 3
    weight = torch.randn(size)
    normed, total = add_rms_norm(x, residual if with_residual else None, weight, 1e-5)
    assert torch.equal(total, x + residual if with_residual else x)
    wide = total.double()
    expected = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + 1e-5) * weight.double()
    assert_close(normed, expected, factor=1.5)


def test_norm_of_strided_and_zero_rows(add_rms_norm):
    x = torch.randn(6, 128)
    assert torch.equal(
        add_rms_norm(x[::2, :100], None, torch.ones(100), 1e-5)[0],
        add_rms_norm(x[::2, :100].contiguous(), None, torch.ones(100), 1e-5)[0],
    )
    assert (add_rms_norm(torch.zeros(2, 64), None, torch.ones(64), 1e-5)[0] == 0).all()


def test_norm_bits_do_not_depend_on_the_batch(add_rms_norm, set_threads):
    x, residual, weight = torch.randn(300, 576), torch.randn(300, 576), torch.randn(576)
    set_threads(1)
    whole, _ = add_rms_norm(x, residual, weight, 1e-6)
    for threads in (1, 2, 3):
        set_threads(threads)
        for begin, end in ((0, 300), (7, 8), (100, 233)):
            part, _ = add_rms_norm(x[begin:end], residual[begin:end], weight, 1e-6)
            assert torch.equal(part, whole[begin:end])


@random_shapes
@given(
    num_rows=st.integers(0, 40),
    size=st.integers(1, 400),
    dtype=st.sampled_from(DTYPES),
    kind=st.sampled_from(["silu", "gelu_tanh"]),
    seed=st.integers(0, 2**20),
)
def test_activation_equals_reference(gated_activation, num_rows, size, dtype, kind, seed):
    torch.manual_seed(seed)
    x = (torch.randn(num_rows, 2 * size) * 4).to(dtype)
    gate, up = x.double().chunk(2, -1)
    act = F.silu(gate) if kind == "silu" else F.gelu(gate, approximate="tanh")
    # Far left of zero the exponent of GELU multiplies its relative error.
    factor = 1.0 if kind == "silu" else 40.0 if dtype == torch.float32 else 1.1
    assert_close(gated_activation(x, kind), act * up, factor=factor, absolute=1e-9)


@pytest.mark.parametrize("kind", ["silu", "gelu_tanh"])
def test_activation_of_extreme_values(gated_activation, kind):
    gate = torch.tensor([[-1e30, -200.0, -89.0, -0.0, 0.0, 89.0, 200.0, 1e30, float("nan")]])
    out = gated_activation(torch.cat([gate, torch.ones_like(gate)], -1), kind)[0]
    assert torch.allclose(out[:5], torch.zeros(5), atol=1e-30)
    assert torch.equal(out[5:8], gate[0, 5:8])
    assert out[8].isnan()


def test_activation_bits_do_not_depend_on_the_batch(gated_activation, set_threads):
    x = torch.randn(130, 2 * 1536)
    set_threads(1)
    whole = gated_activation(x, "silu")
    set_threads(3)
    assert torch.equal(gated_activation(x, "silu"), whole)
    assert torch.equal(gated_activation(x[41:42], "silu"), whole[41:42])


def _rotary_inputs(num_tokens, num_heads, num_kv_heads, head_dim, block_size, dtype, seed=0):
    torch.manual_seed(seed)
    qkv = torch.randn(num_tokens, (num_heads + 2 * num_kv_heads) * head_dim).to(dtype)
    angle = torch.rand(num_tokens, head_dim // 2) * 6
    num_pages = num_tokens // block_size + 2
    slots = torch.randperm((num_pages - 1) * block_size)[:num_tokens] + block_size
    return qkv, angle.cos().to(dtype), angle.sin().to(dtype), slots, num_pages


def _new_pages(num_pages, num_kv_heads, block_size, head_dim, dtype) -> KVPages:
    pool = torch.zeros(num_pages, 2, num_kv_heads, block_size, head_dim, dtype=dtype)
    return KVPages(pool[:, 0], pool[:, 1])


@random_shapes
@given(data=st.data())
def test_rotary_equals_reference(rotary_and_write, data):
    """In float32 without norms the bits equal the reference's: the same roundings."""
    dtype = data.draw(st.sampled_from(DTYPES))
    num_tokens, kv = data.draw(st.integers(1, 40)), data.draw(st.integers(1, 3))
    heads = kv * data.draw(st.integers(1, 4))
    head_dim = data.draw(st.sampled_from([16, 48, 64, 80]))
    block = data.draw(st.sampled_from([1, 5, 16]))
    qkv, cos, sin, slots, num_pages = _rotary_inputs(num_tokens, heads, kv, head_dim, block, dtype)
    norms = None
    if data.draw(st.booleans()):
        norms = HeadNorms(torch.randn(head_dim), torch.randn(head_dim), 1e-6)
    pages = _new_pages(num_pages, kv, block, head_dim, dtype)
    q = rotary_and_write(qkv, cos, sin, pages, slots, norms)
    wide = _new_pages(num_pages, kv, block, head_dim, torch.float32)
    expected = reference_rotary.rotary_and_write(
        qkv.float(), cos.float(), sin.float(), wide, slots, norms
    )
    if norms is None and dtype == torch.float32:
        assert torch.equal(q, expected)
        assert torch.equal(pages.keys, wide.keys)
    # A difference of products: the error is relative to them, not to the result.
    assert_close(q, expected.double(), factor=2.0, absolute=2e-5 if norms else 1e-6)
    assert_close(pages.keys, wide.keys.double(), factor=2.0, absolute=2e-5 if norms else 1e-6)
    assert torch.equal(pages.values.float(), wide.values)


def test_rotary_bits_do_not_depend_on_the_batch(rotary_and_write, set_threads):
    qkv, cos, sin, slots, num_pages = _rotary_inputs(200, 9, 3, 64, 16, torch.float32)
    norms = HeadNorms(torch.randn(64), torch.randn(64), 1e-6)
    whole_pages, pages = (_new_pages(num_pages, 3, 16, 64, torch.float32) for _ in range(2))
    set_threads(1)
    whole = rotary_and_write(qkv, cos, sin, whole_pages, slots, norms)
    set_threads(3)
    parts = [
        rotary_and_write(qkv[i:j], cos[i:j], sin[i:j], pages, slots[i:j], norms)
        for i, j in ((0, 1), (1, 150), (150, 200))
    ]
    assert torch.equal(torch.cat(parts), whole)
    assert torch.equal(pages.keys, whole_pages.keys)
    assert torch.equal(pages.values, whole_pages.values)


def test_rotary_of_no_tokens(rotary_and_write):
    pages = _new_pages(2, 2, 16, 32, torch.float32)
    nothing = torch.zeros(0, 16)
    slots = torch.zeros(0, dtype=torch.int64)
    q = rotary_and_write(torch.zeros(0, 8 * 32), nothing, nothing, pages, slots)
    assert q.shape == (0, 4, 32)


def test_rotary_of_strided_rows(rotary_and_write):
    qkv, cos, sin, slots, num_pages = _rotary_inputs(9, 4, 2, 32, 16, torch.float32)
    pages = _new_pages(num_pages, 2, 16, 32, torch.float32)
    padded = torch.cat([qkv, torch.zeros(9, 7)], -1)[:, : qkv.shape[1]]
    assert torch.equal(
        rotary_and_write(padded, cos, sin, pages, slots),
        rotary_and_write(qkv, cos, sin, pages, slots),
    )


def test_bad_norm_arguments_raise(add_rms_norm):
    x, weight = torch.randn(4, 32), torch.ones(32)
    for bad, error in (
        ((x.double(), None, weight, 1e-5), TypeError),
        ((x, x.bfloat16(), weight, 1e-5), TypeError),
        ((x, x[:2], weight, 1e-5), ValueError),
        ((x, x.t().contiguous().t(), weight, 1e-5), ValueError),
        ((x, None, weight[:31], 1e-5), ValueError),
        ((x, None, weight.bfloat16(), 1e-5), TypeError),
        ((x[0], None, weight, 1e-5), ValueError),
        ((x.t(), None, torch.ones(4), 1e-5), ValueError),
        ((x.to("meta"), None, weight, 1e-5), ValueError),
    ):
        with pytest.raises(error):
            add_rms_norm(*bad)


def test_bad_activation_arguments_raise(gated_activation):
    with pytest.raises(ValueError, match="even"):
        gated_activation(torch.zeros(2, 5), "silu")
    with pytest.raises(ValueError, match="relu"):
        gated_activation(torch.zeros(2, 6), "relu")
    with pytest.raises(TypeError, match="float32 or bfloat16"):
        gated_activation(torch.zeros(2, 6, dtype=torch.float16), "silu")


def test_bad_rotary_arguments_raise(rotary_and_write):
    qkv, cos, sin, slots, num_pages = _rotary_inputs(8, 4, 2, 32, 16, torch.float32)
    pages = _new_pages(num_pages, 2, 16, 32, torch.float32)
    half_pages = KVPages(pages.keys.bfloat16(), pages.values.bfloat16())
    for bad, error in (
        ((qkv, cos[:3], sin, pages, slots), ValueError),
        ((qkv, cos.bfloat16(), sin, pages, slots), TypeError),
        ((qkv, cos, sin, half_pages, slots), TypeError),
        ((qkv, cos, sin, pages, slots + 10_000), IndexError),
        ((qkv, cos, sin, pages, slots - 10_000), IndexError),
        ((qkv, cos, sin, pages, slots.int()), TypeError),
        ((qkv[:, :-1], cos, sin, pages, slots), ValueError),
        ((qkv, cos, sin, pages, slots, HeadNorms(cos[0], cos[0], 1e-6)), ValueError),
    ):
        with pytest.raises(error):
            rotary_and_write(*bad)
