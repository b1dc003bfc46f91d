"""Products with quantized weights: accuracy against float64, batch invariance, bad arguments."""

from __future__ import annotations

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from infopt.ops.cpu.quantized import (
    CodeLinear,
    DynamicInt8Linear,
    Int4Linear,
    Int8Linear,
    Q41Linear,
)

DTYPES = [torch.float32, torch.bfloat16]


def assert_close(y, x, weight, bias, activation_bits, group_size, magnitude=None):
    """Compare with float64.

    An activation is off by at most half a step of its group (its largest value over 127.5, or over
    127 * 256), a sum by that times the sum of absolute weights. The rest is float32 rounding of
    scaled codes and offsets, whose absolute values are added up in `magnitude`.
    """
    weight, exact = weight.double(), x.double()
    magnitude = 256 * weight.abs() if magnitude is None else magnitude
    bias = torch.zeros(()) if bias is None else bias
    expected = exact @ weight.t() + bias.double()
    steps = group_largest(exact, group_size) / (127.5 if activation_bits == 8 else 127 * 256)
    bound = 0.51 * steps @ weight.abs().t() + 2e-7 * bias.double().abs()
    bound += 1e-6 * exact.abs().sum(-1, keepdim=True) * magnitude.amax(-1)
    if y.dtype == torch.bfloat16:
        # The result is rounded, and with many rows the weights are: half a unit of 8 bits each.
        bound += 2**-8 * expected.abs() + 2**-9 * (exact.abs() @ weight.abs().t())
    error = (y.double() - expected).abs()
    assert y.shape == expected.shape
    assert (error <= bound + 1e-30).all(), float((error / bound).max())


def group_largest(x, group_size):
    """For each element the largest absolute value of its group."""
    width = x.shape[1]
    groups = torch.nn.functional.pad(x.abs(), (0, -width % group_size))
    groups = groups.view(x.shape[0], -(-width // group_size), group_size).amax(-1)
    return groups.repeat_interleave(group_size, 1)[:, :width]


def dense(codes, scale, offset, group_size):
    """The float64 weight that codes stand for."""
    scale, offset = (
        part.double().repeat_interleave(group_size, 1)[:, : codes.shape[1]]
        for part in (scale, offset)
    )
    return codes.double() * scale + offset


@settings(
    max_examples=80, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    rows=st.one_of(st.integers(0, 9), st.sampled_from([15, 16, 17, 31, 33, 50])),
    in_features=st.integers(1, 300),
    out_features=st.integers(1, 100),
    code_bits=st.sampled_from([2, 3, 4, 8]),
    group_size=st.sampled_from([32, 64, 96, 128, 320]),
    activation_bits=st.sampled_from([8, 16]),
    dtype=st.sampled_from(DTYPES),
    scale_dtype=st.sampled_from([torch.float16, torch.float32]),
    with_bias=st.booleans(),
    seed=st.integers(0, 2**20),
)
def test_equals_float64(
    cpu_isa,
    rows,
    in_features,
    out_features,
    code_bits,
    group_size,
    activation_bits,
    dtype,
    scale_dtype,
    with_bias,
    seed,
):
    torch.manual_seed(seed)
    codes = torch.randint(0, 2**code_bits, (out_features, in_features)).to(torch.uint8)
    num_groups = -(-in_features // group_size)
    scale, offset = (torch.randn(2, out_features, num_groups) / 16).to(scale_dtype)
    bias = torch.randn(out_features).to(dtype) if with_bias else None
    x = torch.randn(rows, in_features).to(dtype)
    linear = CodeLinear(
        codes,
        scale,
        offset,
        bias,
        code_bits=code_bits,
        group_size=group_size,
        activation_bits=activation_bits,
    )
    y = linear(x)
    assert y.dtype == dtype
    weight, magnitude = (
        dense(codes, *parts, group_size) for parts in ((scale, offset), (scale.abs(), offset.abs()))
    )
    assert_close(y, x, weight, bias, activation_bits, group_size, magnitude)


@pytest.mark.parametrize("rows", [1, 4, 5, 40])
@pytest.mark.parametrize(("cls", "bits"), [(Int8Linear, 16), (DynamicInt8Linear, 8)])
def test_int8_per_output(cpu_isa, cls, bits, rows):
    codes = torch.randint(-128, 128, (576, 1536)).to(torch.int8)
    scale = torch.rand(576) / 100
    x = torch.randn(rows, 1536)
    linear = cls(codes, scale)
    assert_close(linear(x), x, codes.double() * scale.double().unsqueeze(1), None, bits, 1536)
    assert linear.num_bytes == 576 * 1536 + 576 * 2 * 4


@pytest.mark.parametrize("rows", [1, 4, 5, 40])
@pytest.mark.parametrize("symmetric", [True, False])
def test_int4_groups(cpu_isa, rows, symmetric):
    codes = torch.randint(0, 16, (96, 576)).to(torch.uint8)
    scale = (torch.rand(96, 9) / 10).half()
    zero = None if symmetric else torch.randint(0, 16, (96, 9))
    x = torch.randn(rows, 576)
    linear = Int4Linear(codes, scale, zero, group_size=64)
    offset = -scale.double() * (8 if zero is None else zero)
    assert_close(linear(x), x, dense(codes, scale, offset, 64), None, 16, 64)


@pytest.mark.parametrize("rows", [1, 4, 5, 40])
def test_q4_1_blocks(cpu_isa, rows):
    codes = torch.randint(0, 16, (64, 576)).to(torch.uint8)
    scale, minimum = (torch.randn(2, 64, 18) / 16).half()
    x = torch.randn(rows, 576)
    linear = Q41Linear(codes, scale, minimum)
    assert_close(linear(x), x, dense(codes, scale, minimum, 32), None, 16, 32)
    assert linear.num_bytes == 64 * 576 * 5 // 8  # 5 bits a weight


@pytest.mark.parametrize("code_bits", [2, 3])
@pytest.mark.parametrize("activation_bits", [8, 16])
@pytest.mark.parametrize("rows", [1, 6, 40])
def test_two_and_three_bits(cpu_isa, code_bits, activation_bits, rows):
    """Each code of a whole row in its own place, and no more memory than the bits say."""
    generator = torch.Generator().manual_seed(rows)
    codes = torch.randint(0, 2**code_bits, (64, 576), generator=generator).to(torch.uint8)
    scale, offset = (torch.randn(2, 64, 9, generator=generator) / 16).half()
    linear = CodeLinear(
        codes, scale, offset,
        code_bits=code_bits, group_size=64, activation_bits=activation_bits,
    )  # fmt: skip
    x = torch.randn(rows, 576, generator=generator)
    weight = dense(codes, scale, offset, 64)
    assert_close(linear(x), x, weight, None, activation_bits, 64)
    assert linear.num_bytes == 64 * 576 * code_bits // 8 + 64 * 9 * 4
    one_hot = torch.zeros(576, 576)
    one_hot.fill_diagonal_(-127.5)  # a code of -128 and a step of 1: the weights, scaled
    assert_close(linear(one_hot), one_hot, weight, None, activation_bits, 64)


def test_sixteen_bit_activations_are_finer_than_bfloat16(cpu_isa):
    """What the two planes are for: the product is closer to exact than with bfloat16 inputs."""
    torch.manual_seed(0)
    codes = torch.randint(0, 16, (256, 1536)).to(torch.uint8)
    scale, minimum = (torch.randn(2, 256, 48) / 16).half()
    x = torch.randn(8, 1536)
    weight = dense(codes, scale, minimum, 32)
    exact = x.double() @ weight.t()
    error = (Q41Linear(codes, scale, minimum)(x).double() - exact).abs().mean()
    assert error < 0.1 * (x.bfloat16().double() @ weight.t() - exact).abs().mean()


@pytest.mark.parametrize("group_size", [32, 64, 96])
@pytest.mark.parametrize("code_bits", [2, 3, 4, 8])
def test_many_bfloat16_rows(cpu_isa, group_size, code_bits):
    """From half a group's worth of rows on another path may run; the result is as close."""
    codes = torch.randint(0, 2**code_bits, (70, 200)).to(torch.uint8)
    scale, offset = (torch.randn(2, 70, -(-200 // group_size)) / 16).half()
    linear = CodeLinear(codes, scale, offset, code_bits=code_bits, group_size=group_size)
    weight = dense(codes, scale, offset, group_size)
    x = torch.randn(150, 200).bfloat16()
    for rows in (group_size // 2, group_size // 2 + 1, 24, 25, 150):
        assert_close(linear(x[:rows]), x[:rows], weight, None, 16, group_size)
    wide = torch.full((150, 230), float("nan"), dtype=torch.bfloat16)
    wide[:, :200] = x
    assert torch.equal(linear(wide[:, :200]), linear(x))


def test_zero_rows_and_poisoned_rows(cpu_isa):
    """A zero row gives the bias; a NaN or an infinity stays in its own row and shows there."""
    linear = Int4Linear(torch.full((8, 64), 3, dtype=torch.uint8), torch.ones(8, 1), group_size=64)
    x = torch.ones(6, 64)
    x[1] = 0.0
    x[2, 5] = float("nan")
    x[3, 63] = float("inf")
    y = linear(x)
    assert torch.equal(y[[0, 4, 5]], linear(torch.ones(3, 64)))
    assert (y[1] == 0).all()
    assert y[2:4].isnan().all()


@pytest.mark.parametrize("activation_bits", [8, 16])
def test_bits_do_not_depend_on_the_batch(cpu_isa, set_threads, activation_bits):
    codes = torch.randint(0, 16, (96, 576)).to(torch.uint8)
    scale, minimum = (torch.randn(2, 96, 18) / 16).half()
    linear = Q41Linear(codes, scale, minimum, activation_bits=activation_bits)
    x = torch.randn(70, 576)
    set_threads(1)
    whole = linear(x)
    for threads in (1, 3):
        set_threads(threads)
        for rows in (1, 2, 3, 4, 5, 16, 17, 32, 33, 70):
            assert torch.equal(linear(x[:rows]), whole[:rows])
            assert torch.equal(linear(x[70 - rows :]), whole[70 - rows :])


def test_a_large_activation_coarsens_its_own_group_only(cpu_isa):
    """With one step per row, 8-bit activations next to a large one were all rounded to zero."""
    torch.manual_seed(0)
    codes = torch.randint(0, 16, (40, 96)).to(torch.uint8)
    codes[:, :32] = 0
    scale, minimum = (torch.rand(2, 40, 3) / 16).half()
    minimum[:, 0] = 0.0  # the first group has no weight: only its effect on the others is seen
    x = torch.rand(7, 96)
    plain = Q41Linear(codes, scale, minimum, activation_bits=8)(x)
    x[:, 5] = 1e4
    assert torch.equal(Q41Linear(codes, scale, minimum, activation_bits=8)(x), plain)


def test_strided_rows(cpu_isa):
    linear = Int8Linear(torch.randint(-128, 128, (40, 100)).to(torch.int8), torch.rand(40))
    wide = torch.randn(12, 300)
    assert torch.equal(linear(wide[::2, 3:103]), linear(wide[::2, 3:103].contiguous()))


def test_bad_arguments_raise(cpu_isa):
    codes, ones = torch.zeros(32, 64, dtype=torch.uint8), torch.ones(32, 1)
    linear = Int4Linear(codes, ones, group_size=64)
    for x, error in (
        (torch.randn(2, 63), ValueError),
        (torch.randn(64), ValueError),
        (torch.randn(2, 64).half(), TypeError),
        (torch.randn(64, 2).t(), ValueError),
    ):
        with pytest.raises(error):
            linear(x)
    with pytest.raises(ValueError, match="below 16"):
        Int4Linear(codes + 16, ones, group_size=64)
    with pytest.raises(ValueError, match="scale must have shape"):
        Int4Linear(codes, ones, group_size=32)
    with pytest.raises(ValueError, match="multiple"):
        Int4Linear(codes, torch.ones(32, 2), group_size=48)(torch.zeros(1, 64))
    with pytest.raises(TypeError, match="codes"):
        CodeLinear(codes.int(), ones, ones, code_bits=4, group_size=64)
    with pytest.raises(ValueError, match="code_bits"):
        CodeLinear(codes, ones, ones, code_bits=5, group_size=64)
    with pytest.raises(ValueError, match="at most 65536"):
        Int8Linear(torch.zeros(1, 65537, dtype=torch.int8), torch.ones(1))
    with pytest.raises(ValueError, match="activation_bits"):
        Int4Linear(codes, ones, group_size=64, activation_bits=4)(torch.zeros(1, 64))
