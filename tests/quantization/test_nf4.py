"""NF4 weights: which values codes stand for, odd shapes, storage, and both ways to multiply."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from scipy.stats import norm

from infopt.errors import CheckpointError, ConfigError
from infopt.quantization.bnb_library import functional
from infopt.quantization.nf4 import BLOCK_SIZES, NF4Linear, NF4Weight

SHAPES = ((7, 13), (1, 1), (65, 1), (1, 65), (3, 22), (32, 96), (5, 1056), (2, 4160), (64, 64))


def randn(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def table() -> np.ndarray:
    """Return the 16 values from their definition: quantiles of the normal distribution."""
    outermost = 0.9677083
    negative = -norm.ppf(np.linspace(outermost, 0.5, 8)[:-1])
    positive = norm.ppf(np.linspace(outermost, 0.5, 9)[:-1])
    values = np.sort(np.concatenate([negative, [0.0], positive]))
    return (values / np.abs(values).max()).astype(np.float32)


def by_hand(weight: torch.Tensor, block_size: int) -> np.ndarray:
    """Return the weight rounded to the nearest value of the table in each block."""
    flat = weight.flatten().numpy()
    out = np.empty_like(flat)
    for start in range(0, len(flat), block_size):
        block = flat[start : start + block_size]
        largest = np.abs(block).max()
        steps = block / largest if largest else block
        nearest = np.abs(steps[:, None] - table()[None]).argmin(axis=1)
        out[start : start + block_size] = table()[nearest] * largest
    return out.reshape(weight.shape)


@pytest.mark.parametrize("block_size", [32, 64, 4096])
@pytest.mark.parametrize("shape", SHAPES)
def test_values_are_those_of_the_definition(shape, block_size):
    """Rows that do not end with a block once got the scales of other blocks on a CPU."""
    weight = randn(*shape)
    rebuilt = NF4Weight.quantize(weight, block_size=block_size).dequantize(torch.float32)
    assert rebuilt.shape == shape
    np.testing.assert_allclose(rebuilt.numpy(), by_hand(weight, block_size), rtol=2e-6, atol=1e-6)


@pytest.mark.parametrize("block_size", BLOCK_SIZES)
def test_every_block_size_has_the_same_table(block_size):
    """For one size another table was used once, without a word."""
    weight = randn(512, 512)
    coded = NF4Weight.quantize(weight, block_size=block_size)
    steps = coded.dequantize(torch.float32).view(-1, block_size) / coded.absmax().unsqueeze(1)
    distance = np.abs(np.unique(steps.numpy())[:, None] - table()[None]).min(axis=1)
    assert distance.max() < 1e-6


def test_the_error_grows_smoothly_with_the_block():
    """A jump between neighbouring sizes was the mark of a wrong table, or of a broken kernel."""
    weight = randn(512, 512)
    errors = [
        float((NF4Weight.quantize(weight, block_size=b).dequantize(torch.float32) - weight).norm())
        for b in BLOCK_SIZES
    ]
    growth = [b / a for a, b in itertools.pairwise(errors)]
    assert all(1.0 < g < 1.15 for g in growth), growth


@pytest.mark.parametrize("layout", [(65,), (1, 65), (5, 13)])
def test_the_last_block_has_a_scale_of_its_own(layout):
    """The scale of a partly filled block was read from memory that nobody had written."""
    weight = randn(65)
    weight[-1] = 3.0
    shape = layout if len(layout) == 2 else (65, 1)
    rebuilt = NF4Weight.quantize(weight.view(shape)).dequantize(torch.float32).flatten()
    assert float(rebuilt[-1]) == 3.0
    assert bool(rebuilt.isfinite().all())


@pytest.mark.parametrize("shape", [(0, 5), (5, 0)])
@pytest.mark.parametrize("double_quant", [False, True])
def test_an_empty_weight_stays_empty(shape, double_quant):
    coded = NF4Weight.quantize(torch.zeros(shape), double_quant=double_quant)
    assert coded.dequantize(torch.float32).shape == shape
    bias = torch.ones(shape[0])
    y = NF4Linear(coded, bias, torch.float32)(torch.zeros(2, shape[1]))
    assert torch.equal(y, torch.ones(2, shape[0]))


def test_blocks_of_zeros_stay_zero():
    weight = randn(4, 64)
    weight[1] = 0.0
    rebuilt = NF4Weight.quantize(weight).dequantize(torch.float32)
    assert torch.equal(rebuilt[1], torch.zeros(64))
    assert bool(rebuilt.isfinite().all())


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_narrow_types_are_rounded_once(dtype):
    coded = NF4Weight.quantize(randn(32, 96).to(dtype))
    assert torch.equal(coded.dequantize(dtype), coded.dequantize(torch.float32).to(dtype))


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_values_that_are_no_numbers_are_refused(value):
    weight = randn(4, 64)
    weight[2, 3] = value
    with pytest.raises(CheckpointError, match=r"model\.layers\.0\.up holds 1 values") as caught:
        NF4Weight.quantize(weight, layer="model.layers.0.up")
    assert caught.value.field == "model.layers.0.up"


def test_an_unknown_block_size_names_the_sizes():
    with pytest.raises(ConfigError, match="no blocks of 48") as caught:
        NF4Weight.quantize(randn(4, 64), block_size=48)
    assert "64" in str(caught.value.remedy)


@pytest.mark.parametrize("double_quant", [False, True])
@pytest.mark.parametrize("shape", [(7, 13), (64, 128), (0, 5)])
def test_stored_weights_come_back_bit_for_bit(shape, double_quant, tmp_path):
    """Saved layers once lost their scales, or came back with keys that nobody knew."""
    coded = NF4Weight.quantize(randn(*shape), double_quant=double_quant)
    save_file(coded.tensors(), tmp_path / "layer.safetensors")
    read = load_file(tmp_path / "layer.safetensors")
    back = NF4Weight.from_tensors(read)
    assert back.shape == shape
    assert torch.equal(back.packed, coded.packed)
    assert torch.equal(back.absmax(), coded.absmax())
    assert torch.equal(back.dequantize(torch.float32), coded.dequantize(torch.float32))
    assert {n: t.tolist() for n, t in back.tensors().items()} == {
        n: t.tolist() for n, t in read.items()
    }


def test_a_layer_of_transformers_reads_the_stored_weight():
    """The names are those of other people's checkpoints, so both read each other's."""
    from bitsandbytes.nn.modules import Params4bit

    coded = NF4Weight.quantize(randn(64, 128))
    tensors = coded.tensors()
    parts = {n.removeprefix("weight."): t for n, t in tensors.items() if n != "weight"}
    theirs = Params4bit.from_prequantized(tensors["weight"], parts, device="cpu")
    rebuilt = functional().dequantize_4bit(theirs.data, theirs.quant_state)
    assert torch.equal(rebuilt, coded.dequantize(torch.float32))


@pytest.mark.parametrize("missing", ["weight", "weight.absmax", "weight.quant_map"])
def test_a_stored_weight_with_a_hole_is_refused(missing):
    tensors = NF4Weight.quantize(randn(2, 64)).tensors()
    del tensors[missing]
    with pytest.raises(CheckpointError, match="lacks") as caught:
        NF4Weight.from_tensors(tensors)
    assert caught.value.field == missing


def test_scales_in_8_bits_take_less_and_stay_close():
    weight = randn(256, 512)
    plain, double = (NF4Weight.quantize(weight, double_quant=d) for d in (False, True))
    num_blocks = weight.numel() // 64
    assert plain.num_bytes == weight.numel() // 2 + 4 * num_blocks
    assert double.num_bytes == weight.numel() // 2 + num_blocks + 4 * num_blocks // 256
    error = (double.absmax() - plain.absmax()).abs().max() / plain.absmax().max()
    assert 0 < float(error) < 0.01


def product_and_weight(
    out_features: int, in_features: int, dtype: torch.dtype
) -> tuple[NF4Linear, torch.Tensor, torch.Tensor]:
    """Return a product, the weight it stands for in float32, and its bias."""
    coded = NF4Weight.quantize(randn(out_features, in_features).to(dtype))
    bias = randn(out_features, seed=1).to(dtype)
    return NF4Linear(coded, bias, dtype), coded.dequantize(torch.float32), bias


def has_packed_kernel() -> bool:
    return bool(functional().has_avx512bf16())


@pytest.mark.parametrize("num_rows", [1, 3, 16, 33])
@pytest.mark.parametrize(
    ("out_features", "in_features"), [(64, 128), (96, 576), (40, 128), (32, 96)]
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_products_agree_with_the_values_of_the_codes(out_features, in_features, dtype, num_rows):
    linear, weight, bias = product_and_weight(out_features, in_features, dtype)
    x = randn(num_rows, in_features, seed=2).to(dtype)
    expected = x.double() @ weight.double().t() + bias.double()
    y = linear(x)
    assert y.dtype == dtype
    assert y.shape == (num_rows, out_features)
    tolerance = 1e-6 if dtype == torch.float32 else 2.0**-8
    assert float((y.double() - expected).norm() / expected.norm()) < tolerance


@pytest.mark.parametrize(
    ("out_features", "in_features", "dtype", "reason"),
    [
        (64, 128, torch.float32, "for bfloat16"),
        (40, 128, torch.bfloat16, "no multiple of 32"),
        (32, 96, torch.bfloat16, "do not end with a block"),
    ],
)
def test_a_dequantized_product_says_so_and_why(out_features, in_features, dtype, reason):
    linear, _, bias = product_and_weight(out_features, in_features, dtype)
    assert linear.path == "dequantized"
    assert linear.reason is not None
    assert reason in linear.reason
    num_blocks = math.ceil(out_features * in_features / 64)
    codes = out_features * in_features // 2
    assert linear.num_bytes == codes + 4 * num_blocks + bias.nbytes


def test_a_packed_product_reads_four_bits_per_weight():
    if not has_packed_kernel():
        pytest.skip("no AVX-512 for bfloat16")
    linear, weight, bias = product_and_weight(64, 128, torch.bfloat16)
    assert (linear.path, linear.reason) == ("packed", None)
    assert linear.num_bytes == weight.numel() // 2 + 2 * weight.numel() // 64 + bias.nbytes


def test_packing_a_product_leaves_the_weight_as_it_was():
    """The library's layers are rewritten by their first product, and saved as something else."""
    coded = NF4Weight.quantize(randn(64, 128).bfloat16(), double_quant=True)
    before = {name: tensor.clone() for name, tensor in coded.tensors().items()}
    NF4Linear(coded, None, torch.bfloat16)(randn(2, 128).bfloat16())
    after = coded.tensors()
    assert before.keys() == after.keys()
    assert all(torch.equal(before[name], after[name]) for name in before)


@pytest.mark.parametrize(
    ("out_features", "dtype"), [(64, torch.float32), (64, torch.bfloat16), (40, torch.float32)]
)
def test_a_row_has_the_same_bits_alone_and_in_company(out_features, dtype):
    linear, _, _ = product_and_weight(out_features, 128, dtype)
    x = randn(17, 128, seed=3).to(dtype)
    together = linear(x)
    for i in range(len(x)):
        assert torch.equal(linear(x[i : i + 1]), together[i : i + 1])


def test_inputs_of_another_type_are_no_silent_detour():
    """The library casts such inputs to bfloat16 and back."""
    linear, _, _ = product_and_weight(64, 128, torch.bfloat16)
    with pytest.raises(ValueError, match=r"for torch\.bfloat16, got torch\.float32"):
        linear(randn(1, 128))
