"""Products with float8 weights: exact codes, float64, rounding of activations, bits of a row."""

from __future__ import annotations

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from infopt.errors import WeightFormatError
from infopt.ops.cpu.fp8 import LARGEST, Fp8Linear
from infopt.ops.cpu.linear import PackedLinear

DTYPES = [torch.float32, torch.bfloat16]
CODES = torch.tensor([i for i in range(256) if i & 0x7F != 0x7F], dtype=torch.uint8)


def values(codes: torch.Tensor) -> torch.Tensor:
    return codes.view(torch.float8_e4m3fn).double()


def random_codes(*shape: int, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return CODES[torch.randint(0, len(CODES), shape, generator=generator)]


def rounded(x: torch.Tensor, scale: float | None) -> torch.Tensor:
    """Activations in float8 as PyTorch rounds them, float64."""
    exact = x.float()
    steps = exact.abs().amax(-1, keepdim=True) / LARGEST if scale is None else torch.tensor(scale)
    steps = torch.where(steps == 0, 1.0, steps)
    return (exact / steps).clamp(-LARGEST, LARGEST).to(
        torch.float8_e4m3fn
    ).double() * steps.double()


def assert_close(y, x, codes, scale, bias, *, steps: float = 0.0) -> None:
    """Compare with float64: float32 sums, and one rounding of the result to its type.

    ``steps`` more are allowed for rows that were scaled: their factor comes after the sum.
    """
    weight = values(codes) * scale.double().unsqueeze(1)
    expected = x.double() @ weight.t() + (0 if bias is None else bias.double())
    size = x.double().abs() @ weight.abs().t() + (0 if bias is None else bias.double().abs())
    bound = (3e-6 + steps) * size + 1e-30
    if y.dtype == torch.bfloat16:
        bound += 2**-8 * expected.abs()
    assert y.shape == expected.shape
    assert ((y.double() - expected).abs() <= bound).all()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("rows", [64, 8])
def test_every_code_is_exact(cpu_isa, dtype, rows):
    """Subnormal values among them, at every place of a tile, on the path of few and many rows."""
    codes = torch.stack([CODES.roll(i) for i in range(64)])  # (64, 254)
    linear = Fp8Linear(codes, torch.ones(64))
    for first in range(0, 254, rows):
        x = torch.eye(254)[first : first + rows].to(dtype)
        expected = values(codes)[:, first : first + rows].t()
        assert torch.equal(linear(x).double(), expected)


@settings(
    max_examples=80, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    rows=st.one_of(st.integers(0, 14), st.sampled_from([16, 17, 33, 50])),
    in_features=st.integers(1, 300),
    out_features=st.integers(1, 100),
    dtype=st.sampled_from(DTYPES),
    with_bias=st.booleans(),
    activations=st.sampled_from([None, "rows", 0.01]),
    seed=st.integers(0, 2**20),
)
def test_equals_float64(
    cpu_isa, rows, in_features, out_features, dtype, with_bias, activations, seed
):
    torch.manual_seed(seed)
    codes, scale = random_codes(out_features, in_features, seed=seed), torch.rand(out_features) / 50
    bias = torch.randn(out_features).to(dtype) if with_bias else None
    x = torch.randn(rows, in_features).to(dtype)
    if activations is None:
        return assert_close(Fp8Linear(codes, scale, bias)(x), x, codes, scale, bias)
    given_scale = None if activations == "rows" else activations
    linear = Fp8Linear(codes, scale, bias, activation_bits=8, activation_scale=given_scale)
    return assert_close(linear(x), rounded(x, given_scale), codes, scale, bias)


def test_has_the_bits_of_the_float32_product(cpu_isa):
    """Widening a weight is exact, so without a scale nothing else may differ."""
    codes, x = random_codes(70, 300), torch.randn(20, 300)
    plain = PackedLinear(values(codes).float())
    assert torch.equal(Fp8Linear(codes, torch.ones(70))(x), plain(x))


def all_roundings() -> torch.Tensor:
    """Values of float8, the middles between neighbours, and what lies just beside them."""
    exact = values(CODES[CODES < 0x80]).sort().values
    middles = ((exact[1:] + exact[:-1]) / 2).float()
    beside = [torch.nextafter(middles, torch.tensor(s * float("inf"))) for s in (-1, 1)]
    every = torch.cat([exact.float(), middles, *beside, torch.tensor([1e-9, 449.0, 1e30])])
    return torch.cat([every, -every])


def test_activations_are_rounded_to_the_nearest_even(cpu_isa):
    """And saturate: a value beyond the largest became NaN elsewhere, and spoiled all outputs."""
    x = all_roundings()
    size = len(x)
    eye = torch.eye(size).to(torch.float8_e4m3fn)
    linear = Fp8Linear(eye, torch.ones(size), activation_bits=8, activation_scale=1.0)
    y = linear(x.unsqueeze(0))[0]
    assert torch.equal(y, rounded(x, 1.0).float())
    assert y.abs().max() == LARGEST


@pytest.mark.parametrize(("bits", "scale"), [(16, None), (8, None), (8, 0.5)])
@pytest.mark.parametrize("dtype", DTYPES)
def test_poisoned_and_empty_rows_keep_to_themselves(cpu_isa, bits, scale, dtype):
    """An infinity saturates where the scale is given, and shows in its row otherwise."""
    linear = Fp8Linear(
        random_codes(40, 64), torch.ones(40), activation_bits=bits, activation_scale=scale
    )
    x = torch.ones(6, 64, dtype=dtype)
    x[1] = 0.0
    x[2, 5] = float("nan")
    y = linear(x)
    assert torch.equal(y[[0, 3, 4, 5]], linear(torch.ones(4, 64, dtype=dtype)))
    assert (y[1] == 0).all()
    assert y[2].isnan().all()
    x[2, 5] = float("inf")
    assert torch.equal(linear(x)[[0, 1]], y[[0, 1]])
    assert bool(linear(x)[2].isfinite().all()) == (scale is not None)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("bits", [8, 16])
def test_bits_do_not_depend_on_the_batch(cpu_isa, set_threads, bits, dtype):
    if dtype == torch.bfloat16 and cpu_isa == "amx":
        pytest.skip("tiles add in another order")
    linear = Fp8Linear(random_codes(96, 270), torch.rand(96), activation_bits=bits)
    x = torch.randn(70, 270, generator=torch.Generator().manual_seed(0)).to(dtype)
    set_threads(1)
    whole = linear(x)
    for threads in (1, 3):
        set_threads(threads)
        for rows in (1, 2, 5, 12, 13, 16, 17, 33, 70):
            assert torch.equal(linear(x[:rows]), whole[:rows])
            assert torch.equal(linear(x[70 - rows :]), whole[70 - rows :])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("bits", [8, 16])
def test_strided_rows(cpu_isa, bits, dtype):
    linear = Fp8Linear(random_codes(40, 100), torch.rand(40), activation_bits=bits)
    wide = torch.full((40, 300), float("nan"), dtype=dtype)
    wide[:, 3:103] = torch.randn(40, 100)
    assert torch.equal(linear(wide[::2, 3:103]), linear(wide[::2, 3:103].contiguous()))


def test_weights_take_one_byte(cpu_isa):
    codes = random_codes(64, 576)
    assert Fp8Linear(codes, torch.ones(64)).num_bytes == 64 * 576 + 64 * 4
    typed = Fp8Linear(codes.view(torch.float8_e4m3fn), torch.ones(64))
    x = torch.randn(3, 576)
    assert torch.equal(typed(x), Fp8Linear(codes, torch.ones(64))(x))


@pytest.mark.parametrize("code", [0x7F, 0xFF])
def test_a_nan_among_the_weights_is_refused(cpu_isa, code):
    """It would have become 480 without a word."""
    codes = random_codes(8, 64)
    codes[3, 7] = code
    with pytest.raises(WeightFormatError, match=r"1 float8 weights are NaN.*\(3, 7\)"):
        Fp8Linear(codes, torch.ones(8))


def test_bad_arguments_raise(cpu_isa):
    codes, ones = random_codes(32, 64), torch.ones(32)
    linear = Fp8Linear(codes, ones)
    for x, error in (
        (torch.randn(2, 63), ValueError),
        (torch.randn(64), ValueError),
        (torch.randn(2, 64).half(), TypeError),
        (torch.randn(64, 2).t(), ValueError),
    ):
        with pytest.raises(error):
            linear(x)
    for arguments, options, error in (
        ((codes, torch.ones(31)), {}, ValueError),
        ((codes.int(), ones), {}, TypeError),
        ((codes[0], ones), {}, ValueError),
        ((codes, ones, torch.ones(31)), {}, ValueError),
        ((codes, ones), {"activation_bits": 4}, ValueError),
        ((codes, ones), {"activation_scale": 1.0}, ValueError),
        ((codes, ones), {"activation_bits": 8, "activation_scale": 0.0}, ValueError),
    ):
        with pytest.raises(error):
            Fp8Linear(*arguments, **options)
