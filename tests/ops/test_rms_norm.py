"""The reference norm."""

from __future__ import annotations

import pytest
import torch

from infopt.ops.rms_norm import add_rms_norm, rms_norm


@pytest.mark.parametrize(("dtype", "relative"), [(torch.float32, 1e-6), (torch.bfloat16, 2**-8)])
def test_equals_float64(dtype, relative):
    x, weight = (torch.randn(7, 576) * 5).to(dtype), torch.randn(576)
    wide = x.double()
    expected = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + 1e-5) * weight.double()
    out = rms_norm(x, weight, 1e-5)
    assert out.dtype == dtype
    assert ((out.double() - expected).abs() <= 1.5 * relative * expected.abs()).all()


def test_adds_the_residual_first():
    x, residual, weight = torch.randn(3, 64), torch.randn(3, 64), torch.randn(64)
    normed, total = add_rms_norm(x, residual, weight, 1e-6)
    assert torch.equal(total, x + residual)
    assert torch.equal(normed, rms_norm(x + residual, weight, 1e-6))
    assert add_rms_norm(x, None, weight, 1e-6)[1] is x


def test_statistics_are_float32():
    """In bfloat16 the mean of 4,096 squares would stop growing at 256 terms."""
    x = torch.ones(1, 4096, dtype=torch.bfloat16)
    assert torch.equal(rms_norm(x, torch.ones(4096), 0.0), x)


def test_zeros_stay_zero():
    assert torch.equal(rms_norm(torch.zeros(2, 16), torch.ones(16), 1e-6), torch.zeros(2, 16))
