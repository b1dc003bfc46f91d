"""Round to nearest: grids, codes, and what is refused."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from infopt.errors import CheckpointError, WeightFormatError
from infopt.quantization.coded import FLOAT8_MAX, CodedWeight, WeightFormat
from infopt.quantization.rtn import is_no_worse, make_grid, rtn

INT_FORMATS = [
    WeightFormat(bits, group, symmetric)
    for bits in (2, 3, 4, 8)
    for group in (None, 32, 64)
    for symmetric in (True, False)
]


def random_weight(out: int, num_in: int, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(out, num_in, generator=generator)


@settings(max_examples=60, deadline=None)
@given(
    fmt=st.sampled_from(INT_FORMATS),
    out=st.integers(1, 9),
    groups=st.integers(1, 3),
    spread=st.sampled_from([1e-4, 1.0, 300.0]),
    shift=st.sampled_from([0.0, 2.0, -2.0]),
    seed=st.integers(0, 1000),
)
def test_every_weight_is_within_half_a_step(
    fmt: WeightFormat, out: int, groups: int, spread: float, shift: float, seed: int
) -> None:
    weight = (random_weight(out, 64 * groups, seed) + shift) * spread
    coded = rtn(weight, fmt)
    size = fmt.group_size or weight.shape[1]
    step = coded.scale.repeat_interleave(size, dim=1)
    zero = torch.full_like(step, fmt.middle)
    if coded.zero is not None:
        zero = coded.zero.float().repeat_interleave(size, dim=1)
    in_range = (weight >= -zero * step) & (weight <= (fmt.num_codes - 1 - zero) * step)
    error = (weight - coded.dequantize()).abs() / step
    assert float(error[in_range].max()) <= 0.5001
    assert float(error.max()) <= 1.0001  # a rounded zero point can push an end out of the range
    assert int(coded.codes.max()) < fmt.num_codes


@pytest.mark.parametrize("fmt", INT_FORMATS, ids=lambda f: f.describe())
def test_zero_constant_and_outlier_groups(fmt: WeightFormat) -> None:
    weight = torch.zeros(3, 64)
    weight[1] = 0.7
    weight[2, 5] = 1e4
    coded = rtn(weight, fmt)
    back = coded.dequantize()
    assert bool(coded.scale.isfinite().all())
    assert torch.equal(back[0], torch.zeros(64))
    assert bool((back[1] - 0.7).abs().max() <= coded.scale[1].max() * 0.5001)
    assert abs(float(back[2, 5]) - 1e4) <= float(coded.scale[2, 0]) * 0.5001
    assert float(back[2, 6]) == 0.0


def test_scales_in_half_precision_have_codes_of_their_own() -> None:
    weight = random_weight(16, 64)
    half = rtn(weight, WeightFormat(8, 64), scale_dtype=torch.float16)
    assert half.scale.dtype == torch.float16
    expected = (weight / half.scale.float()).round().clamp(-128, 127) + 128
    assert torch.equal(half.codes, expected.to(torch.uint8))


def test_scales_too_small_for_half_precision_stay_float32() -> None:
    coded = rtn(random_weight(4, 64) * 1e-6, WeightFormat(4, 64), scale_dtype=torch.float16)
    assert coded.scale.dtype == torch.float32
    assert float(coded.dequantize().abs().max()) > 0


def test_zero_is_exact_on_asymmetric_grids() -> None:
    weight = random_weight(8, 64).abs() + 5.0
    weight[:, 3] = 0.0
    assert torch.equal(rtn(weight, WeightFormat(4, 64, False)).dequantize()[:, 3], torch.zeros(8))


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("fmt", [WeightFormat(4, 32), WeightFormat(8, number="float")])
def test_weights_that_are_no_numbers_are_refused(bad: float, fmt: WeightFormat) -> None:
    weight = random_weight(2, 64)
    weight[1, 7] = bad
    with pytest.raises(CheckpointError, match=r"layers\.3.*1 values"):
        rtn(weight, fmt, layer="layers.3")


def test_groups_that_do_not_divide_name_the_layer_and_what_fits() -> None:
    message = r"mlp\.down_proj has 192 inputs.*128.*32, 64, 96, 192"
    with pytest.raises(WeightFormatError, match=message):
        rtn(random_weight(4, 192), WeightFormat(4, 128), layer="mlp.down_proj")


@pytest.mark.parametrize(("num_in", "group"), [(96, 32), (1056, 32)])
def test_no_column_is_added(num_in: int, group: int) -> None:
    coded = rtn(random_weight(8, num_in), WeightFormat(4, group), scale_dtype=torch.float16)
    assert coded.codes.shape == (8, num_in)
    assert coded.scale.shape == (8, num_in // group)
    assert coded.num_bytes == 8 * num_in // 2 + 2 * 8 * num_in // group


def test_float8_scales_to_its_largest_value_and_never_overflows() -> None:
    weight = torch.tensor([[1000.0, -1000.0, 1.0, 0.0]])
    coded = rtn(weight, WeightFormat(8, number="float"))
    assert float(coded.scale) == pytest.approx(1000 / FLOAT8_MAX)
    assert coded.dequantize()[0].tolist() == pytest.approx([1000.0, -1000.0, 1.0, 0.0], rel=0.04)
    assert not bool((coded.codes.view(torch.uint8) & 0x7F == 0x7F).any())


@pytest.mark.parametrize("fmt", INT_FORMATS, ids=lambda f: f.describe())
def test_effective_bits_are_the_bytes(fmt: WeightFormat) -> None:
    coded = rtn(random_weight(32, 128), fmt, scale_dtype=torch.float16)
    assert 8 * coded.num_bytes / coded.codes.numel() == pytest.approx(fmt.effective_bits(128))


def test_effective_bits_of_the_usual_formats() -> None:
    assert WeightFormat(4, 128).effective_bits(4096) == 4.125
    assert WeightFormat(4, 64).effective_bits(4096) == 4.25
    assert WeightFormat(8).effective_bits(512) == 8 + 16 / 512


def test_a_grid_depends_on_its_group_alone() -> None:
    weight = random_weight(4, 128)
    scale, _ = make_grid(weight, WeightFormat(4, 64))
    alone, _ = make_grid(weight[:, 64:], WeightFormat(4, 64))
    assert torch.equal(scale[:, 1:], alone)


def test_scales_that_do_not_belong_to_the_codes_are_refused() -> None:
    coded = rtn(random_weight(4, 64), WeightFormat(4, 32))
    wrong = CodedWeight(coded.format, coded.codes, coded.scale[:, :1])
    with pytest.raises(CheckpointError, match="layer 7: the scale has shape"):
        wrong.check("layer 7")
    coded.scale[0, 0] = float("nan")
    with pytest.raises(CheckpointError, match="layer 7: a scale is not finite"):
        coded.check("layer 7")


def test_codes_are_compared_where_the_inputs_are() -> None:
    """An error in a channel without input costs nothing, one in a loud channel does."""
    weight, fmt = random_weight(8, 64), WeightFormat(4, 32)
    nearest, found = rtn(weight, fmt), rtn(weight, fmt)
    found.codes[:, 0] = 15 - found.codes[:, 0]
    quiet, loud = torch.ones(64), torch.ones(64)
    quiet[0], loud[0] = 0.0, 9.0
    assert is_no_worse(weight, found, nearest, torch.diag(quiet))
    assert not is_no_worse(weight, found, nearest, torch.diag(loud))
