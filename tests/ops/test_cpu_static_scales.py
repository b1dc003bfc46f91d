"""Eight-bit activations with a scale that is given: rounding, saturation, rows apart."""

from __future__ import annotations

import pytest
import torch

from infopt.ops.cpu.quantized import CodeLinear, DynamicInt8Linear, Int8Linear

DTYPES = [torch.float32, torch.bfloat16]


def rounded_to(x, scale):
    """Eight-bit activations of a given scale, as PyTorch rounds them."""
    return (x.float() / scale).round().clamp(-128, 127) * scale


@pytest.mark.parametrize("scale", [0.05, 0.0123, 1e-4])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("rows", [1, 2, 40])
def test_activations_of_a_given_scale(cpu_isa, scale, dtype, rows):
    """They are rounded exactly as said, ties to even, and saturate on both sides."""
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(rows, 200, generator=generator).to(dtype) * 3
    x[0, :6] = torch.tensor([0.5, 1.5, 2.5, -0.5, 1e30, -1e30]).to(dtype) * scale
    expected = rounded_to(x, scale)
    eye = torch.eye(200).to(torch.int8)
    kept = DynamicInt8Linear(eye, torch.ones(200), activation_scale=scale)(x.float())
    assert torch.equal((kept / scale).round(), (expected / scale).round())
    codes = torch.randint(-128, 128, (70, 200), generator=generator).to(torch.int8)
    scales = torch.rand(70, generator=generator) / 50
    y = DynamicInt8Linear(codes, scales, activation_scale=scale)(x)
    weight = codes.double() * scales.double().unsqueeze(1)
    exact = expected.double() @ weight.t()
    bound = 2e-6 * 128 * scale * 200 * scales.double() * 128 + 2**-8 * exact.abs() * (
        dtype == torch.bfloat16
    )
    assert ((y.double() - exact).abs() <= bound).all()


@pytest.mark.parametrize("code_bits", [2, 4])
def test_a_given_scale_serves_weights_in_groups_too(cpu_isa, code_bits):
    codes = torch.randint(0, 2**code_bits, (40, 96)).to(torch.uint8)
    scale, offset = (torch.randn(2, 40, 3) / 16).half()
    how = {"code_bits": code_bits, "group_size": 32, "activation_bits": 8}
    linear = CodeLinear(codes, scale, offset, activation_scale=0.02, **how)
    x = torch.randn(33, 96)
    weight = codes.double() * scale.double().repeat_interleave(32, 1)
    weight += offset.double().repeat_interleave(32, 1)
    exact = rounded_to(x, 0.02).double() @ weight.t()
    torch.testing.assert_close(linear(x).double(), exact, rtol=1e-5, atol=1e-5)


def test_a_given_scale_keeps_rows_apart(cpu_isa, set_threads):
    """A NaN shows in its own row, an infinity saturates, and bits depend on the row alone."""
    codes = torch.randint(-128, 128, (96, 576)).to(torch.int8)
    linear = DynamicInt8Linear(codes, torch.rand(96), activation_scale=0.03)
    x = torch.randn(70, 576)
    x[1, 3], x[2, 5] = float("nan"), float("inf")
    set_threads(1)
    whole = linear(x)
    assert whole[1].isnan().all()
    finite = x.clone()
    finite[1, 3], finite[2, 5] = 0.0, 1e30
    assert torch.equal(linear(finite)[[0, *range(2, 70)]], whole[[0, *range(2, 70)]])
    set_threads(3)
    for rows in (1, 2, 3, 16, 17, 33, 70):
        assert torch.equal(linear(finite[:rows]), linear(finite)[:rows])


@pytest.mark.parametrize("scale", [0.0, -1.0, float("nan"), float("inf"), 1e-60])
def test_impossible_scales_are_refused(cpu_isa, scale):
    codes = torch.zeros(32, 64, dtype=torch.int8)
    with pytest.raises(ValueError, match="activation_scale"):
        DynamicInt8Linear(codes, torch.ones(32), activation_scale=scale)
    with pytest.raises(ValueError, match="8-bit activations"):
        Int8Linear(codes, torch.ones(32), activation_scale=0.1)
