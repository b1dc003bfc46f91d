"""Layers in compressed-tensors' formats against the package's own compressors."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from compressed_tensors.compressors import BaseCompressor
from compressed_tensors.quantization import QuantizationArgs, QuantizationScheme
from hypothesis import given, settings
from hypothesis import strategies as st

from infopt.errors import CheckpointError, UnsupportedModelError, WeightFormatError
from infopt.models.checkpoint import open_checkpoint
from infopt.models.packed import StoredTensor
from infopt.quantization.coded import ActivationFormat, CodedWeight, WeightFormat
from infopt.quantization.compressed_layers import (
    CompressedTensorsReader,
    exactly,
    layer_tensors,
)
from infopt.quantization.compressed_settings import layer_scheme, quantization_config

TYPES = {
    torch.int8: "I8",
    torch.int32: "I32",
    torch.int64: "I64",
    torch.float8_e4m3fn: "F8_E4M3",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.float32: "F32",
}
FORMATS = [
    *(WeightFormat(bits, group) for bits in (2, 3, 4, 8) for group in (None, 32)),
    *(WeightFormat(bits, group, symmetric=False) for bits in (3, 4, 8) for group in (None, 32)),
    WeightFormat(8, number="float"),
]
ACTIVATIONS = [ActivationFormat(), ActivationFormat("dynamic"), ActivationFormat("static")]


def headers(tensors: dict[str, torch.Tensor]) -> dict[str, StoredTensor]:
    return {part: StoredTensor(TYPES[t.dtype], tuple(t.shape)) for part, t in tensors.items()}


def config(weights: dict[str, Any], storage: str, **changes: Any) -> dict[str, Any]:
    group = {"targets": ["Linear"], "weights": weights, "input_activations": None}
    values = {"quant_method": "compressed-tensors", "format": storage, "ignore": ["lm_head"]}
    return values | {"config_groups": {"group_0": group}} | changes


def read(tensors: dict[str, torch.Tensor], values: dict[str, Any], shape: tuple[int, int]) -> Any:
    reader = CompressedTensorsReader(values)
    assert reader.is_coded("a.q_proj", shape, headers(tensors))
    return reader.read("a.q_proj", shape, tensors)


def peer_tensors(
    weights: dict[str, Any], storage: str, dtype: torch.dtype, shape: tuple[int, int] = (48, 96)
) -> tuple[dict[str, Any], Any]:
    """Return a layer as compressed-tensors stores it, and the weight that it makes of it."""
    args = QuantizationArgs(**weights)
    scheme = QuantizationScheme(targets=["Linear"], weights=args)
    generator = torch.Generator().manual_seed(0)
    strategy = args.strategy
    columns = shape[1] // weights["group_size"] if strategy == "group" else 1
    scale_shape = (1,) if strategy == "tensor" else (shape[0], columns)
    scale = (torch.rand(scale_shape, generator=generator) * 0.01 + 0.01).to(dtype)
    state = {"weight": torch.randn(shape, generator=generator).to(dtype), "weight_scale": scale}
    if not args.symmetric:
        top = 2 ** (args.num_bits - 1)
        zero = torch.randint(-top, top, scale_shape, generator=generator).to(torch.int8)
        state["weight_zero_point"] = zero
    compressor = BaseCompressor.get_value_from_registry(storage)
    stored = compressor.compress(state, scheme)
    exact = stored | {"weight_scale": stored["weight_scale"].float()}
    return dict(stored), compressor.decompress(exact, scheme)["weight"]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
@pytest.mark.parametrize(
    ("weights", "storage"),
    [
        *(({"num_bits": b, "group_size": 32}, "pack-quantized") for b in (2, 3, 4, 8)),
        ({"num_bits": 4, "strategy": "channel"}, "pack-quantized"),
        ({"num_bits": 8, "strategy": "tensor"}, "pack-quantized"),
        ({"num_bits": 4, "group_size": 32, "symmetric": False}, "pack-quantized"),
        ({"num_bits": 3, "strategy": "channel", "symmetric": False}, "pack-quantized"),
        ({"num_bits": 8, "strategy": "channel"}, "int-quantized"),
        ({"num_bits": 8, "strategy": "tensor", "symmetric": False}, "int-quantized"),
        ({"num_bits": 4, "group_size": 32, "symmetric": False}, "naive-quantized"),
        ({"num_bits": 8, "type": "float", "strategy": "channel"}, "float-quantized"),
        ({"num_bits": 8, "type": "float", "strategy": "tensor"}, "naive-quantized"),
    ],
)
def test_weights_of_the_package_are_read_to_the_bit(weights, storage, dtype):
    tensors, weight = peer_tensors(weights, storage, dtype)
    coded = read(tensors, config(weights, storage), (48, 96))
    assert torch.equal(coded.dequantize(), weight)


@pytest.mark.parametrize("num_in", [96, 1056])
@pytest.mark.parametrize("bits", [3, 4])
def test_inputs_are_not_padded(num_in, bits, code_weight):
    """Pins the fault of padding every layer to 1024 inputs."""
    weight = torch.randn(16, num_in, generator=torch.Generator().manual_seed(0))
    coded = code_weight(weight, WeightFormat(bits, 32))
    scheme = layer_scheme("a.q_proj", coded)
    tensors = layer_tensors("a.q_proj", coded, scheme["format"], torch.float16)
    assert tensors["weight_packed"].shape == (16, num_in * bits // 32)
    num_bytes = sum(t.nbytes for part, t in tensors.items() if part != "weight_shape")
    assert num_bytes == coded.num_bytes == 16 * num_in * bits // 8 + 16 * num_in // 32 * 2


def write(coded: CodedWeight, dtype: torch.dtype = torch.float16) -> tuple[Any, dict[str, Any]]:
    """Return the tensors of a layer and the settings of a model that has it alone."""
    scheme = layer_scheme("a.q_proj", coded)
    values = quantization_config({"a.q_proj": scheme}, ["a.q_proj", "lm_head"])
    return layer_tensors("a.q_proj", coded, scheme["format"], dtype), values


@settings(max_examples=60, deadline=None)
@given(
    fmt=st.sampled_from(FORMATS),
    activation=st.sampled_from(ACTIVATIONS),
    dtype=st.sampled_from([torch.float16, torch.bfloat16, torch.float32]),
    num_out=st.integers(1, 70),
    groups=st.integers(1, 4),
    seed=st.integers(0, 9),
)
def test_writing_and_reading_gives_the_same_bits(
    code_weight, fmt, activation, dtype, num_out, groups, seed
):
    generator = torch.Generator().manual_seed(seed)
    weight = torch.randn(num_out, 32 * groups, generator=generator)
    if activation.kind != "float":
        scale = 0.375 if activation.kind == "static" else None
        activation = ActivationFormat(activation.kind, 8, fmt.number, scale)
    coded = code_weight(weight, fmt, activation, dtype)
    tensors, values = write(coded, dtype)
    found = read(tensors, values, (num_out, 32 * groups))
    assert (found.format, found.activation) == (fmt, activation)
    assert torch.equal(found.dequantize(), coded.dequantize())
    again, same = write(found, dtype)
    assert same == values
    assert list(again) == list(tensors)
    for part, tensor in tensors.items():
        assert again[part].dtype == tensor.dtype
        assert again[part].shape == tensor.shape
        copies = [t.clone(memory_format=torch.contiguous_format) for t in (again[part], tensor)]
        bits = [copy.view(torch.uint8) for copy in copies]
        assert torch.equal(*bits), part


def test_large_float8_values_saturate_and_no_nan_is_stored(code_weight):
    """Pins the fault of values above the range that became NaN bytes and destroyed all output."""
    weight = torch.tensor([[1000.0, -1000.0, 1.0, 0.0]])
    coded = code_weight(weight, WeightFormat(8, number="float"), dtype=torch.float32)
    tensors, _ = write(coded, torch.float32)
    assert float(tensors["weight_scale"]) == pytest.approx(1000 / 448)
    stored = tensors["weight"].view(torch.uint8)
    assert not ((stored & 0x7F) == 0x7F).any()
    assert torch.equal(coded.dequantize()[0, [0, 1, 3]], weight[0, [0, 1, 3]])
    coded.codes[0, 2] = float("nan")
    with pytest.raises(
        CheckpointError, match=r"a\.q_proj holds 1 codes that are no numbers of fp8"
    ):
        write(coded, torch.float32)


def test_codes_beyond_their_bits_are_refused(code_weight):
    coded = code_weight(torch.randn(4, 32), WeightFormat(4, 32))
    coded.codes[1, 1] = 16
    with pytest.raises(CheckpointError, match="1 codes that are no numbers of int4-g32"):
        write(coded)
    weights = {"num_bits": 4, "strategy": "channel"}
    plain = {"weight": torch.full((2, 8), 9, dtype=torch.int8), "weight_scale": torch.ones(2, 1)}
    with pytest.raises(CheckpointError, match="16 codes"):
        read(plain, config(weights, "int-quantized"), (2, 8))


def test_a_scale_that_the_folder_cannot_hold_is_refused(code_weight):
    coded = code_weight(torch.randn(4, 32), WeightFormat(4, 32), dtype=torch.float32)
    with pytest.raises(WeightFormatError, match=r"a weight scale is no float16 number"):
        write(coded, torch.float16)
    assert exactly(torch.tensor([0.5]), torch.float16, "x").dtype == torch.float16
    with pytest.raises(WeightFormatError, match="no float16 number"):
        exactly(torch.tensor([1e6]), torch.float16, "x")


@pytest.mark.parametrize(
    ("change", "what"),
    [
        ({"group_index": torch.arange(64) % 2}, "act-order"),
        ({"activation": ActivationFormat("dynamic", 8, "float")}, "float8 inputs of int4-g32"),
        ({"activation": ActivationFormat("dynamic", 4)}, "int4 inputs of int4-g32"),
    ],
)
def test_what_has_no_form_is_named(code_weight, change, what):
    coded = code_weight(torch.randn(4, 64), WeightFormat(4, 32))
    for name, value in change.items():
        setattr(coded, name, value)
    with pytest.raises(WeightFormatError, match=what):
        layer_scheme("a.q_proj", coded)


def test_a_last_group_that_is_not_full_is_read():
    """192 inputs in groups of 128: the second group has 64."""
    tensors = {
        "weight": torch.randint(-8, 8, (48, 192), generator=torch.Generator().manual_seed(0)),
        "weight_scale": torch.rand(48, 2) + 0.5,
    }
    tensors["weight"] = tensors["weight"].to(torch.int8)
    values = config({"num_bits": 4, "group_size": 128}, "int-quantized")
    coded = read(tensors, values, (48, 192))
    wide = tensors["weight_scale"].repeat_interleave(128, dim=1)[:, :192]
    assert torch.equal(coded.dequantize(), tensors["weight"].float() * wide)


def test_inputs_out_of_order_keep_their_groups():
    weights = {"num_bits": 4, "group_size": 32, "actorder": "group"}
    tensors, _ = peer_tensors({"num_bits": 4, "group_size": 32}, "pack-quantized", torch.float32)
    index = torch.arange(96, dtype=torch.int32).flip(0) // 32
    coded = read(tensors | {"weight_g_idx": index}, config(weights, "pack-quantized"), (48, 96))
    signed = coded.codes.float() - 8
    assert torch.equal(coded.dequantize(), signed * tensors["weight_scale"][:, index.long()])


@pytest.mark.parametrize("missing", ["weight_packed", "weight_scale", "weight_zero_point"])
def test_a_missing_tensor_is_named(missing):
    weights = {"num_bits": 4, "group_size": 32, "symmetric": False}
    found = headers(peer_tensors(weights, "pack-quantized", torch.float16)[0])
    del found[missing]
    reader = CompressedTensorsReader(config(weights, "pack-quantized"))
    with pytest.raises(CheckpointError, match=rf"lacks a\.q_proj\.{missing}"):
        reader.is_coded("a.q_proj", (48, 96), found)


def test_values_that_contradict_the_settings_are_refused():
    weights = {"num_bits": 4, "group_size": 32}
    tensors, _ = peer_tensors(weights, "pack-quantized", torch.float16)
    values = config(weights, "pack-quantized")
    wrong = {"weight_zero_point": torch.ones(48, 3, dtype=torch.int8)}
    with pytest.raises(CheckpointError, match="weight_zero_point is not zero"):
        read(tensors | wrong, values, (48, 96))
    with pytest.raises(CheckpointError, match=r"weight_shape says \(48, 95\)"):
        read(tensors | {"weight_shape": torch.tensor([48, 95])}, values, (48, 96))
    with pytest.raises(CheckpointError, match=r"a\.q_proj\.input_scale, for which"):
        read(tensors | {"input_scale": torch.ones(1)}, values, (48, 96))
    with pytest.raises(CheckpointError, match=r"weight_packed is I32 \(48, 12\).*\(48, 24\)"):
        read(tensors, config(weights | {"num_bits": 8}, "pack-quantized"), (48, 96))
    with pytest.raises(CheckpointError, match="ignores it"):
        CompressedTensorsReader(values).is_coded("lm_head", (48, 96), headers(tensors))


def test_a_weight_in_float_with_scales_is_refused():
    weights = {"num_bits": 4, "group_size": 32}
    tensors = {"weight": torch.ones(48, 96), "weight_scale": torch.ones(48, 3)}
    reader = CompressedTensorsReader(config(weights, "pack-quantized"))
    with pytest.raises(
        CheckpointError, match=r"a\.q_proj has scales, and its weight is stored as F32"
    ):
        reader.is_coded("a.q_proj", (48, 96), headers(tensors))
    assert not reader.is_coded("a.q_proj", (48, 96), {"weight": StoredTensor("F32", (48, 96))})


INT4 = {"num_bits": 4, "group_size": 32}


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (config(INT4, "marlin-24"), "'marlin-24'"),
        (config(INT4, "dense"), "'dense'"),
        (config({"num_bits": 1}, "pack-quantized"), "num_bits of int weights to 1"),
        (config({"num_bits": 4, "type": "float"}, "naive-quantized"), "num_bits of float weights"),
        (
            config({"type": "float", "block_structure": [8, 8], "strategy": "block"}, "x"),
            "to 'x'",
        ),
        (
            config(
                {"type": "float", "block_structure": [8, 8], "strategy": "block"},
                "float-quantized",
            ),
            "strategy of float weights to 'block'",
        ),
        (config(INT4, "pack-quantized", kv_cache_scheme={"num_bits": 8}), "kv_cache_scheme"),
        (config(INT4, "pack-quantized", transform_config={"a": 1}), "transform_config"),
        (config(INT4, "pack-quantized", sparsity_config={"format": "dense"}), "sparsity_config"),
        (config(INT4, "pack-quantized", formatt="x"), "'formatt'"),
        (config(INT4 | {"bits": 4}, "pack-quantized"), "bits"),
        (config({"num_bits": 4, "strategy": "group"}, "pack-quantized"), "group_size"),
    ],
)
def test_settings_that_are_not_supported_are_refused_by_name(values, message):
    with pytest.raises(UnsupportedModelError, match=message):
        CompressedTensorsReader(values)


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        ({"num_bits": 4, "strategy": "token", "dynamic": True}, "num_bits of input_activations"),
        ({"num_bits": 8, "symmetric": False, "strategy": "tensor"}, "symmetric of input"),
        ({"num_bits": 8, "strategy": "tensor", "dynamic": True}, "strategy of input_activations"),
        ({"num_bits": 8, "group_size": 32, "dynamic": True}, "strategy of input_activations"),
    ],
)
def test_inputs_that_are_not_computed_are_refused_by_name(inputs, message):
    values = config({"num_bits": 8, "strategy": "channel"}, "int-quantized")
    values["config_groups"]["group_0"]["input_activations"] = inputs
    with pytest.raises(UnsupportedModelError, match=message):
        CompressedTensorsReader(values)


def test_several_groups_with_patterns_and_names_decide_as_the_package_does(packed_folder):
    """An exact name wins over a pattern, a pattern over a class; what is ignored stays dense."""
    int8 = {"num_bits": 8, "strategy": "channel"}
    groups = {
        "group_0": {"targets": ["Linear"], "weights": INT4, "format": "pack-quantized"},
        "group_1": {
            "targets": [r"re:.*self_attn\.[qk]_proj"],
            "weights": int8,
            "input_activations": {"num_bits": 8, "strategy": "token", "dynamic": True},
            "format": "int-quantized",
        },
        "group_2": {
            "targets": ["model.layers.1.self_attn.q_proj"],
            "weights": {"type": "float", "strategy": "channel"},
            "format": "naive-quantized",
        },
    }
    settings = config(
        {}, "mixed-precision", config_groups=groups, ignore=["lm_head", "re:.*o_proj"]
    )
    expected: dict[str, tuple[torch.Tensor, str]] = {}

    def parts(layer: str, weight: torch.Tensor) -> dict[str, torch.Tensor] | None:
        if layer == "lm_head" or layer.endswith("o_proj"):
            return None
        chosen = "group_0"
        if layer.endswith(("q_proj", "k_proj")):
            chosen = "group_2" if ".1." in layer and "q_proj" in layer else "group_1"
        group = groups[chosen]
        tensors, values = peer_tensors(
            group["weights"], group["format"], torch.float32, (weight.shape[0], weight.shape[1])
        )
        expected[layer] = values, chosen
        return tensors

    checkpoint = open_checkpoint(packed_folder(parts, settings))
    assert {chosen for _, chosen in expected.values()} == set(groups)
    for layer, (weight, chosen) in expected.items():
        assert torch.equal(checkpoint.get(f"{layer}.weight"), weight), layer
        coded = checkpoint.coded(layer)
        assert isinstance(coded, CodedWeight)
        assert coded.activation.kind == ("dynamic" if chosen == "group_1" else "float")
    assert checkpoint.coded("model.layers.0.self_attn.o_proj") is None
