"""Quantized weights for CUDA: what the constructors make of codes, scales and zero points."""

from __future__ import annotations

import importlib.util

import pytest
import torch

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("triton") is None, reason="triton is not installed"
)
DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
OUT, IN = 24, 100


@pytest.fixture
def quantized():
    from infopt.ops.gpu import quantized

    return quantized


def random(*shape):
    return torch.rand(*shape, device=DEVICE)


def assert_multiplies(linear, weight, bias):
    x = torch.randn(3, IN, device=DEVICE)
    expected = x.double() @ weight.double().T + bias.double()
    assert (linear.out_features, linear.in_features) == (OUT, IN)
    assert (linear(x) - expected).abs().max() <= 1e-5 * expected.abs().max()


def test_int8(quantized):
    codes = torch.randint(-127, 128, (OUT, IN), dtype=torch.int8, device=DEVICE)
    scale, bias = random(OUT), random(OUT)
    linear = quantized.Int8Linear(codes, scale, bias)
    assert_multiplies(linear, codes * scale.unsqueeze(1), bias)
    assert linear.num_bytes == OUT * IN + 8 * OUT


def test_w8a8_is_near_int8(quantized):
    codes = torch.randint(-127, 128, (OUT, IN), dtype=torch.int8, device=DEVICE)
    scale, x = random(OUT), torch.randn(3, IN, device=DEVICE)
    exact = quantized.Int8Linear(codes, scale)(x)
    error = (quantized.DynamicInt8Linear(codes, scale)(x) - exact).abs().max()
    assert 0 < error <= 0.02 * exact.abs().max()


@pytest.mark.parametrize("with_zero", [False, True])
def test_int4(quantized, with_zero):
    codes = torch.randint(0, 16, (OUT, IN), dtype=torch.uint8, device=DEVICE)
    scale, bias = random(OUT, 2), random(OUT)
    zero = torch.randint(0, 16, (OUT, 2), device=DEVICE) if with_zero else None
    linear = quantized.Int4Linear(codes, scale, zero, bias, group_size=64)
    at = torch.arange(IN, device=DEVICE) // 64
    zeros = torch.full_like(scale, 8.0) if zero is None else zero.float()
    assert_multiplies(linear, scale[:, at] * (codes - zeros[:, at]), bias)
    assert linear.num_bytes == OUT * 64 + 2 * OUT * 2 * 4 + OUT * 4


def test_q41(quantized):
    codes = torch.randint(0, 16, (OUT, IN), dtype=torch.uint8, device=DEVICE)
    d, m, bias = random(OUT, 4).half(), -random(OUT, 4).half(), random(OUT)
    at = torch.arange(IN, device=DEVICE) // 32
    weight = d.float()[:, at] * codes + m.float()[:, at]
    assert_multiplies(quantized.Q41Linear(codes, d, m, bias), weight, bias)


def test_float8(quantized):
    weight = torch.randn(OUT, IN, device=DEVICE).to(torch.float8_e4m3fn)
    scale, bias = random(OUT), random(OUT)
    linear = quantized.Float8Linear(weight, scale, bias)
    assert_multiplies(linear, weight.float() * scale.unsqueeze(1), bias)
    broken = weight.float()
    broken[2, 3] = float("nan")
    with pytest.raises(ValueError, match="NaN"):
        quantized.Float8Linear(broken.to(torch.float8_e4m3fn), scale)
