"""The packed C++ matrix products: accuracy, batch invariance, bad arguments."""

from __future__ import annotations

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from infopt.ops.cpu.linear import PackedLinear

DTYPES = [torch.float32, torch.bfloat16]


def assert_close(y, x, weight, bias):
    """Compare with float64; the bound is relative to the sum of absolute products.

    float32: chains of 256 multiply-adds round less than 1e-5 of that. bfloat16: products are exact
    in float32; the result is rounded to 8 bits.
    """
    expected = x.double() @ weight.double().t()
    magnitude = x.double().abs() @ weight.double().abs().t()
    if bias is not None:
        expected, magnitude = expected + bias.double(), magnitude + bias.double().abs()
    bound = 2e-6 * magnitude
    if y.dtype == torch.bfloat16:
        bound += 2**-8 * expected.abs()
    error = (y.double() - expected).abs()
    assert (error <= bound + 1e-30).all(), float((error / bound).max())


@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    rows=st.one_of(st.integers(0, 20), st.sampled_from([31, 32, 33, 48, 49, 65, 130])),
    in_features=st.integers(1, 300),
    out_features=st.integers(1, 140),
    dtype=st.sampled_from(DTYPES),
    with_bias=st.booleans(),
    seed=st.integers(0, 2**20),
)
def test_equals_reference(cpu_isa, rows, in_features, out_features, dtype, with_bias, seed):
    torch.manual_seed(seed)
    x = torch.randn(rows, in_features).to(dtype)
    weight = torch.randn(out_features, in_features).to(dtype)
    bias = torch.randn(out_features).to(dtype) if with_bias else None
    y = PackedLinear(weight, bias)(x)
    assert y.shape == (rows, out_features)
    assert y.dtype == dtype
    assert_close(y, x, weight, bias)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(960, 576), (576, 1536), (640, 2048), (1000, 1000)])
def test_shapes_of_models(cpu_isa, dtype, shape):
    weight, x = torch.randn(shape).to(dtype), torch.randn(70, shape[1]).to(dtype)
    assert_close(PackedLinear(weight)(x), x, weight, None)


@pytest.mark.parametrize("shape", [(576, 1536), (100, 333)])
def test_float32_bits_do_not_depend_on_the_batch(cpu_isa, set_threads, shape):
    """Rows alone, in any company, and with any threads; oneDNN fails this at one row."""
    linear = PackedLinear(torch.randn(shape), torch.randn(shape[0]))
    x = torch.randn(200, shape[1])
    set_threads(1)
    whole = linear(x)
    for threads in (1, 2, 5):
        set_threads(threads)
        for rows in (*range(1, 30), 64, 150, 200):
            assert torch.equal(linear(x[:rows]), whole[:rows])
            assert torch.equal(linear(x[200 - rows :]), whole[200 - rows :])


@pytest.mark.parametrize("dtype", DTYPES)
def test_strided_rows(cpu_isa, dtype):
    wide = torch.randn(40, 500).to(dtype)
    linear = PackedLinear(torch.randn(64, 100).to(dtype))
    assert torch.equal(linear(wide[::2, 7:107]), linear(wide[::2, 7:107].contiguous()))


def test_values_behind_a_row_do_not_leak(cpu_isa):
    """A width that is not a multiple of a tile: what lies behind a row is not multiplied."""
    wide = torch.full((20, 64), float("nan"), dtype=torch.bfloat16)
    wide[:, :50] = 1.0
    assert torch.equal(
        PackedLinear(torch.ones(16, 50, dtype=torch.bfloat16))(wide[:, :50]),
        torch.full((20, 16), 50.0, dtype=torch.bfloat16),
    )


def test_num_bytes_counts_what_is_read(cpu_isa):
    linear = PackedLinear(torch.zeros(64, 96), torch.zeros(64))
    assert linear.num_bytes == 4 * (64 * 96 + 64)


def test_bad_arguments_raise(cpu_isa):
    linear = PackedLinear(torch.randn(32, 64))
    for x, error in (
        (torch.randn(2, 63), ValueError),
        (torch.randn(64), ValueError),
        (torch.randn(2, 64).bfloat16(), TypeError),
        (torch.randn(2, 64).double(), TypeError),
        (torch.randn(64, 2).t(), ValueError),
        (torch.randn(2, 64).to("meta"), ValueError),
        (torch.randn(2, 64, requires_grad=True), ValueError),
    ):
        with pytest.raises(error):
            linear(x)
    half_linear = PackedLinear(torch.zeros(32, 64, dtype=torch.bfloat16))
    with pytest.raises(ValueError, match="width 63"):
        half_linear(torch.zeros(2, 63, dtype=torch.bfloat16))
    with pytest.raises(TypeError, match="float32 or bfloat16"):
        PackedLinear(torch.zeros(8, 8, dtype=torch.float16))
    with pytest.raises(ValueError, match="bias"):
        PackedLinear(torch.zeros(8, 8), torch.zeros(9))(torch.zeros(1, 8))
    with pytest.raises(ValueError, match="empty"):
        PackedLinear(torch.zeros(0, 8))
