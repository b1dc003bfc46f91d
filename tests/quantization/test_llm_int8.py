"""LLM.int8: codes, outliers, storage, and what it cannot promise."""

from __future__ import annotations

import pytest
import torch
from safetensors.torch import load_file, save_file

from infopt.errors import CheckpointError, WeightFormatError
from infopt.quantization.llm_int8 import Int8Weight, LlmInt8Linear


def randn(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("shape", [(7, 13), (1, 1), (64, 576)])
def test_a_weight_is_off_by_half_a_step_at_most(shape):
    weight = randn(*shape).half().float()  # weights pass through float16
    rebuilt = Int8Weight.quantize(weight).dequantize(torch.float32)
    step = weight.abs().amax(dim=1, keepdim=True) / 127
    assert bool(((rebuilt - weight).abs() <= step * 0.5001).all())


def test_outputs_of_zeros_and_of_one_value_are_exact():
    weight = torch.stack([torch.zeros(64), torch.full((64,), 0.5), torch.full((64,), -2.0)])
    rebuilt = Int8Weight.quantize(weight).dequantize(torch.float32)
    torch.testing.assert_close(rebuilt, weight, rtol=1e-6, atol=0)


@pytest.mark.parametrize("shape", [(0, 5), (5, 0)])
def test_an_empty_weight_stays_empty(shape):
    coded = Int8Weight.quantize(torch.zeros(shape))
    assert coded.dequantize(torch.float32).shape == shape
    y = LlmInt8Linear(coded, torch.ones(shape[0]))(torch.zeros(2, shape[1]))
    assert torch.equal(y, torch.ones(2, shape[0]))


def test_no_rows_give_no_rows():
    assert LlmInt8Linear(Int8Weight.quantize(randn(7, 13)), None)(randn(0, 13)).shape == (0, 7)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_values_that_are_no_numbers_are_refused(value):
    weight = randn(4, 64)
    weight[2, 3] = value
    with pytest.raises(CheckpointError, match="up holds 1 values"):
        Int8Weight.quantize(weight, layer="up")


def test_values_beyond_float16_are_refused():
    """The library would code them as infinity, and every product would be NaN."""
    weight = randn(4, 64)
    weight[1, 1] = 7e4
    with pytest.raises(WeightFormatError, match="up holds 70000") as caught:
        Int8Weight.quantize(weight, layer="up")
    assert caught.value.value == 7e4


@pytest.mark.parametrize("shape", [(7, 13), (64, 128), (0, 5)])
def test_stored_weights_come_back_bit_for_bit(shape, tmp_path):
    coded = Int8Weight.quantize(randn(*shape))
    save_file(coded.tensors(), tmp_path / "layer.safetensors")
    back = Int8Weight.from_tensors(load_file(tmp_path / "layer.safetensors"))
    assert torch.equal(back.codes, coded.codes)
    assert torch.equal(back.absmax, coded.absmax)
    assert back.codes.dtype == torch.int8


@pytest.mark.parametrize("missing", ["weight", "SCB"])
def test_a_stored_weight_with_a_hole_is_refused(missing):
    tensors = Int8Weight.quantize(randn(2, 64)).tensors()
    del tensors[missing]
    with pytest.raises(CheckpointError, match="lacks") as caught:
        Int8Weight.from_tensors(tensors)
    assert caught.value.field == missing


def test_a_layer_of_transformers_computes_the_same():
    from bitsandbytes.nn.modules import Linear8bitLt

    weight, bias = randn(64, 128), randn(64, seed=1)
    theirs = Linear8bitLt(128, 64, has_fp16_weights=False, threshold=6.0)
    theirs.load_state_dict({"weight": weight.half(), "bias": bias})
    x = randn(5, 128, seed=2)
    x[2, 7] = 40.0
    ours = LlmInt8Linear(Int8Weight.quantize(weight), bias)
    with torch.no_grad():
        torch.testing.assert_close(ours(x), theirs.to("cpu").eval()(x))


def relative_error(linear: LlmInt8Linear, weight: torch.Tensor, x: torch.Tensor) -> float:
    expected = x.double() @ weight.double().t()
    return float((linear(x).double() - expected).norm() / expected.norm())


@pytest.mark.parametrize("num_rows", [1, 3, 17])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_product_is_close_to_the_float_one(num_rows, dtype):
    weight, bias = randn(64, 576), randn(64, seed=1).to(dtype)
    linear = LlmInt8Linear(Int8Weight.quantize(weight), bias)
    x = randn(num_rows, 576, seed=2).to(dtype)
    y = linear(x)
    assert y.dtype == dtype
    expected = x.double() @ weight.double().t() + bias.double()
    assert float((y.double() - expected).norm() / expected.norm()) < 0.02


@pytest.mark.parametrize("num_rows", [1, 8])
def test_outliers_do_not_spoil_the_others(num_rows):
    """That is what the format is for: with one scale per row they take all its steps."""
    weight = randn(64, 576)
    x = randn(num_rows, 576, seed=2)
    x[0, 100], x[-1, 200] = 500.0, -300.0
    quiet = weight.clone()
    quiet[:, [100, 200]] = 0.0  # so that outliers add nothing, and only their harm shows
    coded = Int8Weight.quantize(quiet)
    assert relative_error(LlmInt8Linear(coded, None), quiet, x) < 0.02
    assert relative_error(LlmInt8Linear(coded, None, threshold=0.0), quiet, x) > 0.2


def test_inputs_beyond_float16_give_numbers():
    weight = randn(64, 128)
    x = randn(3, 128)
    x[1, 5] = 1e6
    assert relative_error(LlmInt8Linear(Int8Weight.quantize(weight), None), weight, x) < 0.02


def test_rows_of_zeros_give_the_bias():
    bias = randn(64, seed=1)
    linear = LlmInt8Linear(Int8Weight.quantize(randn(64, 128)), bias)
    assert torch.equal(linear(torch.zeros(3, 128)), bias.expand(3, -1))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_the_input_is_left_alone(dtype):
    x = randn(3, 128).to(dtype)
    x[1, 5] = 40.0
    before = x.clone()
    LlmInt8Linear(Int8Weight.quantize(randn(64, 128)), None)(x)
    assert torch.equal(x, before)


def test_a_row_depends_on_the_outliers_of_its_batch_and_says_so():
    """Columns with outliers are chosen for the whole batch, so bits cannot be promised."""
    linear = LlmInt8Linear(Int8Weight.quantize(randn(64, 128)), None)
    x = randn(2, 128, seed=2)
    x[1, 5] = 40.0
    assert not torch.equal(linear(x)[:1], linear(x[:1]))
    assert linear.batch_invariant is False
    calm = randn(5, 128, seed=3)
    assert torch.equal(linear(calm)[:1], linear(calm[:1]))


def test_it_takes_a_byte_per_weight_and_says_how_it_multiplies():
    linear = LlmInt8Linear(Int8Weight.quantize(randn(64, 128)), torch.zeros(64))
    assert linear.num_bytes == 64 * 128 + 64 * 4 + 64 * 4
    if torch.backends.cpu.get_cpu_capability() == "AVX512":
        assert (linear.path, linear.reason) == ("packed", None)
    else:
        assert linear.path == "dequantized"
        assert "AVX-512" in str(linear.reason)
