"""GPTQ checkpoints of other tools, packed by hand and dequantized explicitly."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from infopt.errors import CheckpointError, ConfigError, UnsupportedModelError
from infopt.models.checkpoint import open_checkpoint
from infopt.models.packed import StoredTensor
from infopt.quantization.gptq_format import GPTQReader

SETTINGS = {"quant_method": "gptq", "bits": 4, "group_size": 32, "desc_act": False, "sym": False}


def words(codes: list[int], bits: int) -> list[int]:
    """Return the 32-bit words of one row of bits, the first code lowest."""
    number = sum(int(code) << (bits * i) for i, code in enumerate(codes))
    return [(number >> (32 * w)) & 0xFFFFFFFF for w in range(-(-len(codes) * bits // 32))]


def rows_of_words(rows: np.ndarray, bits: int) -> torch.Tensor:
    packed = np.array([words(row.tolist(), bits) for row in rows], dtype=np.uint32)
    return torch.from_numpy(packed.view(np.int32))


def random_layer(
    shape: tuple[int, int],
    bits: int = 4,
    group: int = 32,
    *,
    below: int = 1,
    act_order: bool = False,
    seed: int = 0,
) -> tuple[dict[str, torch.Tensor], np.ndarray]:
    """Return the tensors of a layer and the weight that they stand for.

    ``below`` is what the format subtracts from zero points: 1 in version 1, 0 in version 2.
    """
    num_out, num_in = shape
    draw = np.random.default_rng(seed)
    size = num_in if group == -1 else group
    num_groups = -(-num_in // size)
    codes = draw.integers(0, 2**bits, (num_in, num_out))
    zeros = draw.integers(0, 2**bits, (num_groups, num_out))
    scales = draw.uniform(0.001, 0.02, (num_groups, num_out)).astype(np.float16)
    g_idx = np.arange(num_in) // size
    if act_order:
        g_idx = draw.permutation(g_idx)
    steps = scales.astype(np.float32)[g_idx]
    weight = ((codes - zeros[g_idx]).astype(np.float32) * steps).T
    tensors = {
        "qweight": rows_of_words(codes.T, bits).T.contiguous(),
        "qzeros": rows_of_words((zeros - below) % 2**bits, bits),
        "scales": torch.from_numpy(scales),
        "g_idx": torch.from_numpy(g_idx.astype(np.int32)),
    }
    return tensors, weight


def headers(tensors: dict[str, torch.Tensor]) -> dict[str, StoredTensor]:
    names = {torch.int32: "I32", torch.float16: "F16"}
    return {part: StoredTensor(names[t.dtype], tuple(t.shape)) for part, t in tensors.items()}


def read(tensors: dict[str, torch.Tensor], shape: tuple[int, int], **changes: Any) -> Any:
    reader = GPTQReader(SETTINGS | changes)
    assert reader.is_coded("layer", shape, headers(tensors))
    return reader.read("layer", shape, tensors)


@pytest.mark.parametrize("bits", [2, 3, 4, 8])
@pytest.mark.parametrize(("checkpoint_format", "below"), [("gptq", 1), ("gptq_v2", 0)])
@pytest.mark.parametrize("act_order", [False, True])
def test_weights_equal_explicit_dequantization(bits, checkpoint_format, below, act_order):
    shape = (64, 96)
    tensors, weight = random_layer(shape, bits, below=below, act_order=act_order)
    options = {"bits": bits, "checkpoint_format": checkpoint_format, "desc_act": act_order}
    coded = read(tensors, shape, **options)
    assert (coded.group_index is not None) == act_order
    assert coded.format.bits == bits
    assert np.array_equal(coded.dequantize().numpy(), weight)


def test_version_1_is_what_a_file_without_a_word_on_it_has():
    tensors, weight = random_layer((16, 64))
    assert np.array_equal(read(tensors, (16, 64)).dequantize().numpy(), weight)
    other = read(tensors, (16, 64), checkpoint_format="gptq_v2").dequantize().numpy()
    assert not np.array_equal(other, weight)


def test_a_zero_point_of_zero_wraps_in_version_1():
    """Version 1 stores 0 as 15; adding one without the wrap would shift the group by 16 steps."""
    tensors, _ = random_layer((8, 32))
    tensors["qzeros"] = rows_of_words(np.full((1, 8), 15), 4)
    coded = read(tensors, (8, 32))
    assert coded.zero is not None
    assert not coded.zero.any()


@pytest.mark.parametrize("bits", [2, 4, 8])
def test_symmetric_codes_have_no_zero_points(bits):
    tensors, _ = random_layer((16, 64), bits)
    tensors["qzeros"] = rows_of_words(np.full((2, 16), 2 ** (bits - 1) - 1), bits)
    coded = read(tensors, (16, 64), bits=bits, sym=True)
    assert coded.zero is None
    assert coded.format.symmetric


@pytest.mark.parametrize(
    ("shape", "group"), [((48, 192), 128), ((48, 64), 128), ((40, 96), -1), ((48, 200), 64)]
)
def test_odd_sizes_are_read(shape, group):
    """Pins the fault of checkpoints that could be made and not loaded: a last group that is not
    full, outputs that no common tile divides."""
    tensors, weight = random_layer(shape, group=group)
    coded = read(tensors, shape, group_size=group)
    assert np.array_equal(coded.dequantize().numpy(), weight)
    x = torch.randn(3, shape[1], generator=torch.Generator().manual_seed(0))
    error = (x @ coded.dequantize().T - x @ torch.from_numpy(weight).T).abs().max()
    assert error <= 1e-3


def test_a_last_group_that_is_not_full_is_refused_where_inputs_are_not_in_order():
    tensors, _ = random_layer((48, 192), group=128, act_order=True)
    with pytest.raises(ConfigError, match=r"layer has 192 inputs.*Sizes that fit: 32, 64"):
        read(tensors, (48, 192), group_size=128)


@pytest.mark.parametrize("num_in", [96, 1056])
@pytest.mark.parametrize("bits", [3, 4])
def test_inputs_are_not_padded(num_in, bits):
    """Pins the fault of padding every layer to 1024 inputs."""
    tensors, weight = random_layer((32, num_in), bits)
    assert tensors["qweight"].shape == (num_in * bits // 32, 32)
    coded = read(tensors, (32, num_in), bits=bits)
    assert coded.codes.shape == (32, num_in)
    assert coded.num_bytes == 32 * num_in * bits // 8 + 32 * num_in // 32 * (16 + bits) // 8
    assert np.array_equal(coded.dequantize().numpy(), weight)


def test_groups_that_do_not_exist_are_refused():
    tensors, _ = random_layer((8, 64))
    tensors["g_idx"] = torch.full((64,), 2, dtype=torch.int32)
    with pytest.raises(CheckpointError, match=r"g_idx names groups 2 to 2, and there are 2"):
        read(tensors, (8, 64))


def test_layers_may_have_settings_of_their_own():
    dynamic = {r"+:.*\.down_proj": {"bits": 8, "group_size": 64}, "-:lm_head": {}}
    reader = GPTQReader(SETTINGS | {"dynamic": dynamic})
    for layer, bits, group in (("a.down_proj", 8, 64), ("a.up_proj", 4, 32)):
        tensors, weight = random_layer((16, 64), bits, group)
        assert reader.is_coded(layer, (16, 64), headers(tensors))
        coded = reader.read(layer, (16, 64), tensors)
        assert np.array_equal(coded.dequantize().numpy(), weight)
    with pytest.raises(UnsupportedModelError, match="'bit'"):
        GPTQReader(SETTINGS | {"dynamic": {"x": {"bit": 8}}})


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("bits", 5),
        ("bits", True),
        ("checkpoint_format", "marlin"),
        ("is_marlin_format", True),
        ("pack_dtype", "int8"),
        ("group_size", -2),
        ("dynamic", "x"),
        ("group_sizes", 64),
    ],
)
def test_settings_that_are_not_known_are_refused_by_name(key, value):
    with pytest.raises(UnsupportedModelError, match=key) as error:
        GPTQReader(SETTINGS | {key: value})
    assert error.value.field == key


@pytest.mark.parametrize("missing", ["qweight", "qzeros", "scales"])
def test_a_missing_tensor_is_named(missing):
    found = headers(random_layer((16, 32))[0])
    del found[missing]
    with pytest.raises(CheckpointError, match=rf"lacks the\.layer\.{missing}"):
        GPTQReader(SETTINGS).is_coded("the.layer", (16, 32), found)


def test_bits_of_another_file_are_seen_in_the_shape():
    found = headers(random_layer((16, 64), bits=8)[0])
    with pytest.raises(CheckpointError, match=r"the\.layer\.qweight is I32 \(16, 16\).*\(8, 16\)"):
        GPTQReader(SETTINGS).is_coded("the.layer", (16, 64), found)


def test_a_folder_with_dense_layers_and_empty_biases(packed_folder):
    """Pins the faults of demanding a packed head, and of a bias that some tools add."""
    expected: dict[str, np.ndarray] = {}

    def parts(layer: str, weight: torch.Tensor) -> dict[str, torch.Tensor] | None:
        if layer == "lm_head" or layer.endswith("layers.1.mlp.down_proj"):
            return None
        shape = (weight.shape[0], weight.shape[1])
        tensors, expected[layer] = random_layer(shape, act_order=True, seed=len(expected))
        return tensors | {"bias": torch.zeros(shape[0], dtype=torch.float16)}

    checkpoint = open_checkpoint(packed_folder(parts, SETTINGS | {"desc_act": True}))
    assert len(expected) == 20
    assert not [name for name in checkpoint.names() if name.endswith("bias")]
    for layer, weight in expected.items():
        assert np.array_equal(checkpoint.get(f"{layer}.weight").numpy(), weight), layer
    assert checkpoint.coded("model.layers.1.mlp.down_proj") is None


def test_a_bias_that_is_not_zero_is_refused(packed_folder):
    def parts(layer: str, weight: torch.Tensor) -> dict[str, torch.Tensor]:
        tensors, _ = random_layer((weight.shape[0], weight.shape[1]))
        return tensors | {"bias": torch.ones(weight.shape[0])}

    with pytest.raises(CheckpointError, match=r"\.bias'"):
        open_checkpoint(packed_folder(parts, SETTINGS))
