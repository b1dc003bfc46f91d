"""Products with quantized weights in Triton (int8, int4, float8, W8A8) against float64."""

from __future__ import annotations

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from infopt.kernels.triton_ops import linear_fp8, linear_int4, linear_int8, linear_w8a8, references
from infopt.kernels.triton_ops.common import KernelArgumentError

few = settings(
    max_examples=4,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
sizes = st.tuples(
    st.sampled_from([1, 3, 16, 17, 70]), st.integers(1, 140), st.sampled_from([1, 32, 100, 300])
)
E4M3 = torch.float8_e4m3fn


def random_int8(*shape, device):
    return torch.randint(-127, 128, shape, dtype=torch.int8, device=device)


def check(assert_close, y, expected, x, weight, dtype):
    """Errors are relative to the sum of absolute products, as rounding errors of sums are."""
    size = x.double().abs() @ weight.double().abs().T + expected.abs()
    assert y.dtype == dtype
    assert_close(y, expected, size=size, ulps=4 if dtype == torch.float32 else 0.6)


@few
@given(shape=sizes, with_bias=st.booleans())
def test_int8(shape, with_bias, dtype, device, assert_close):
    rows, outputs, inputs = shape
    torch.manual_seed(rows + outputs)
    x = torch.randn(rows, inputs, device=device).to(dtype)
    codes, scale = random_int8(outputs, inputs, device=device), torch.rand(outputs, device=device)
    bias = torch.randn(outputs, device=device).to(dtype) if with_bias else None
    y = linear_int8.int8_linear(x, codes, scale, bias)
    weight = codes.double() * scale.double().unsqueeze(1)
    check(assert_close, y, references.int8_linear(x, codes, scale, bias), x, weight, dtype)


@few
@given(
    shape=sizes,
    group=st.sampled_from(linear_int4.GROUP_SIZES),
    scale_dtype=st.sampled_from([torch.float16, torch.float32]),
)
def test_int4(shape, group, scale_dtype, dtype, device, assert_close):
    rows, outputs, inputs = shape
    torch.manual_seed(rows + outputs)
    x = torch.randn(rows, inputs, device=device).to(dtype)
    codes = torch.randint(0, 16, (outputs, inputs), dtype=torch.uint8, device=device)
    groups = -(-inputs // group)
    scale = torch.rand(groups, outputs, device=device).to(scale_dtype)
    offset = -8 * torch.rand(groups, outputs, device=device).to(scale_dtype)
    bias = torch.randn(outputs, device=device).to(dtype)
    packed = linear_int4.pack_int4(codes, group)
    y = linear_int4.int4_linear(x, packed, scale, offset, bias)
    expected = references.int4_linear(x, codes, scale, offset, bias, group)
    # Weights are rounded to the type of the activations: relative to their parts.
    at = torch.arange(inputs, device=device) // group
    weight = 15 * scale.double()[at].T.abs() + offset.double()[at].T.abs()
    check(assert_close, y, expected, x, weight, dtype)


@few
@given(shape=sizes)
def test_fp8(shape, dtype, device, assert_close):
    rows, outputs, inputs = shape
    torch.manual_seed(rows + outputs)
    x = torch.randn(rows, inputs, device=device).to(dtype)
    weight = (torch.randn(outputs, inputs, device=device) * 20).to(E4M3)
    scale = torch.rand(outputs, device=device).half()
    y = linear_fp8.fp8_linear(x, weight, scale)
    wide = weight.double() * scale.double().unsqueeze(1)
    expected = references.int8_linear(x, weight, scale, None)
    check(assert_close, y, expected, x, wide, dtype)


def test_every_float8_is_exact(device):
    bits = torch.tensor([b for b in range(256) if b & 0x7F != 0x7F], dtype=torch.uint8)
    weight = bits.view(E4M3).unsqueeze(1).to(device)
    one = torch.ones(1, 1, device=device)
    y = linear_fp8.fp8_linear(one, weight, torch.ones(len(bits), device=device))
    assert torch.equal(y[0], weight[:, 0].float())


@few
@given(shape=sizes)
def test_w8a8(shape, dtype, device, assert_close):
    rows, outputs, inputs = shape
    torch.manual_seed(rows + outputs)
    x = torch.randn(rows, inputs, device=device).to(dtype)
    codes, scale = linear_w8a8.quantize_rows(x)
    expected = references.quantize_rows(x)
    assert torch.equal(codes, expected[0])
    assert torch.equal(scale, expected[1])
    weight, factor = random_int8(outputs, inputs, device=device), torch.rand(outputs, device=device)
    y = linear_w8a8.w8a8_linear(x, weight, factor)
    assert_close(
        y, references.w8a8_linear(x, weight, factor, None), ulps=4 if dtype == torch.float32 else 1
    )


def test_quantized_rows_of_zeros_and_ties(device):
    x = torch.tensor([[0.0, 0.0, 0.0], [127.5, 0.5, 1.5], [-127.5, 2.5, -0.5]], device=device)
    codes, scale = linear_w8a8.quantize_rows(x)
    assert scale.tolist() == [0.0, 1.0, 1.0]
    assert codes.tolist() == [[0, 0, 0], [127, 0, 2], [-128, 2, 0]]


def _run(kind, x, device):
    torch.manual_seed(5)
    outputs, inputs = 40, x.shape[1]
    scale = torch.rand(outputs, device=device)
    if kind == "int4":
        codes = torch.randint(0, 16, (outputs, inputs), dtype=torch.uint8, device=device)
        scales = torch.rand(2, -(-inputs // 64), outputs, device=device)
        return linear_int4.int4_linear(x, linear_int4.pack_int4(codes, 64), *scales)
    if kind == "fp8":
        weight = torch.randn(outputs, inputs, device=device).to(E4M3)
        return linear_fp8.fp8_linear(x, weight, scale)
    run = linear_int8.int8_linear if kind == "int8" else linear_w8a8.w8a8_linear
    return run(x, random_int8(outputs, inputs, device=device), scale)


@pytest.mark.parametrize("kind", ["int8", "int4", "fp8", "w8a8"])
def test_float32_bits_do_not_depend_on_the_batch(kind, device, exact_dot):
    x = torch.randn(35, 150, device=device)
    whole = _run(kind, x, device)
    for rows in (slice(0, 1), slice(17, 18), slice(3, 20)):
        assert torch.equal(_run(kind, x[rows], device), whole[rows])


@pytest.mark.parametrize("kind", ["int8", "int4", "fp8", "w8a8"])
def test_strided_and_empty_rows(kind, device):
    wide = torch.randn(4, 200, device=device)
    strided = _run(kind, wide[:, :150], device)
    assert torch.equal(strided, _run(kind, wide[:, :150].contiguous(), device))
    assert _run(kind, wide[:0, :150], device).shape == (0, 40)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"x": torch.zeros(2, 9)}, "x must have shape"),
        ({"x": torch.zeros(2, 8).double()}, "x must be"),
        ({"x": torch.zeros(8, 2).t()}, "contiguous rows"),
        ({"codes": torch.zeros(3, 8)}, "codes must be int8"),
        ({"codes": torch.zeros(8, 3, dtype=torch.int8).t()}, "codes must be contiguous"),
        ({"scale": torch.ones(4)}, "scale must have shape"),
        ({"scale": torch.ones(3).double()}, "scale must be"),
        ({"bias": torch.ones(4)}, "bias must have shape"),
        ({"scale": torch.ones(3, device="meta")}, "scale must be on"),
    ],
)
def test_wrong_arguments_raise(change, message, device):
    good = {"x": torch.zeros(2, 8), "codes": torch.zeros(3, 8, dtype=torch.int8)}
    given = good | {"scale": torch.ones(3), "bias": torch.ones(3)} | change
    given = {n: v if v.device.type == "meta" else v.to(device) for n, v in given.items()}
    with pytest.raises(KernelArgumentError, match=message):
        linear_int8.int8_linear(**given)


def test_wrong_int4_arguments_raise(device):
    codes = torch.zeros(3, 100, dtype=torch.uint8, device=device)
    with pytest.raises(KernelArgumentError, match="group_size must be one of"):
        linear_int4.pack_int4(codes, 48)
    with pytest.raises(KernelArgumentError, match="below 16"):
        linear_int4.pack_int4(codes + 16, 32)
    packed, scale = linear_int4.pack_int4(codes, 64), torch.ones(2, 3, device=device)
    x = torch.zeros(1, 100, device=device)
    with pytest.raises(KernelArgumentError, match="must end in the last of 2 groups"):
        linear_int4.int4_linear(x[:, :64], packed, scale, scale)
    with pytest.raises(KernelArgumentError, match="offset must be"):
        linear_int4.int4_linear(x, packed, scale, scale.half())
    with pytest.raises(KernelArgumentError, match="scale must have shape"):
        linear_int4.int4_linear(x, packed, scale.t().contiguous(), scale)
