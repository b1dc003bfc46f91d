"""AWQ checkpoints of other tools, packed by hand and dequantized explicitly."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from infopt.errors import CheckpointError, UnsupportedModelError
from infopt.models.checkpoint import open_checkpoint
from infopt.models.packed import StoredTensor
from infopt.quantization.awq_format import AWQReader

PLACES = [0, 2, 4, 6, 1, 3, 5, 7]  # which of eight outputs lies at each four bits of a word
SETTINGS = {"quant_method": "awq", "bits": 4, "group_size": 32, "zero_point": True}
SETTINGS |= {"version": "gemm", "modules_to_not_convert": None}


def words(codes: np.ndarray) -> torch.Tensor:
    """Pack ``(rows, outputs)`` into ``(rows, outputs / 8)``, one word at a time."""
    packed = np.zeros((codes.shape[0], codes.shape[1] // 8), dtype=np.uint32)
    for row, word in np.ndindex(packed.shape):
        for place, output in enumerate(PLACES):
            packed[row, word] |= np.uint32(int(codes[row, 8 * word + output]) << (4 * place))
    return torch.from_numpy(packed.view(np.int32))


def random_layer(
    num_out: int, num_in: int, group: int, seed: int = 0
) -> tuple[dict[str, torch.Tensor], np.ndarray]:
    """Return the tensors of a layer and the weight ``(out, in)`` that they stand for."""
    draw = np.random.default_rng(seed)
    size = num_in if group == -1 else group
    num_groups = -(-num_in // size)
    codes = draw.integers(0, 16, (num_in, num_out))
    zeros = draw.integers(0, 16, (num_groups, num_out))
    scales = draw.uniform(0.001, 0.02, (num_groups, num_out)).astype(np.float16)
    weight = np.empty((num_out, num_in), dtype=np.float32)
    for i in range(num_in):
        g = i // size
        weight[:, i] = (codes[i] - zeros[g]).astype(np.float32) * scales[g].astype(np.float32)
    tensors = {"qweight": words(codes), "qzeros": words(zeros), "scales": torch.from_numpy(scales)}
    return tensors, weight


def headers(tensors: dict[str, torch.Tensor]) -> dict[str, StoredTensor]:
    names = {torch.int32: "I32", torch.float16: "F16", torch.float32: "F32"}
    return {part: StoredTensor(names[t.dtype], tuple(t.shape)) for part, t in tensors.items()}


def read(tensors: dict[str, torch.Tensor], shape: tuple[int, int], **changes: Any) -> Any:
    reader = AWQReader(SETTINGS | changes)
    assert reader.is_coded("layer", shape, headers(tensors))
    return reader.read("layer", shape, tensors)


@pytest.mark.parametrize(
    ("num_out", "num_in", "group"), [(48, 192, 64), (8, 32, 32), (64, 96, -1), (16, 1056, 32)]
)
def test_weights_equal_explicit_dequantization(num_out, num_in, group):
    tensors, weight = random_layer(num_out, num_in, group)
    coded = read(tensors, (num_out, num_in), group_size=group)
    assert np.array_equal(coded.dequantize().numpy(), weight)
    assert coded.format.group_size == (None if group == -1 else group)
    assert coded.scale.dtype == torch.float16


def test_a_last_group_that_is_not_full_is_read():
    """Pins the fault of checkpoints with 192 inputs in groups of 128 that could not be loaded."""
    tensors, weight = random_layer(48, 192, 128)
    assert tensors["scales"].shape == (2, 48)
    coded = read(tensors, (48, 192), group_size=128)
    assert coded.format.group_size == 64
    assert np.array_equal(coded.dequantize().numpy(), weight)
    x = torch.randn(3, 192, generator=torch.Generator().manual_seed(0))
    error = (x @ coded.dequantize().T - x @ torch.from_numpy(weight).T).abs().max()
    assert error <= 1e-3


def test_zero_points_in_the_middle_are_symmetric():
    tensors, _ = random_layer(8, 32, 32)
    middle = tensors | {"qzeros": words(np.full((1, 8), 8))}
    coded = read(middle, (8, 32))
    assert coded.zero is None
    assert coded.format.symmetric
    without = {part: middle[part] for part in ("qweight", "scales")}
    assert torch.equal(read(without, (8, 32), zero_point=False).dequantize(), coded.dequantize())


def test_outputs_that_do_not_fill_words_are_refused_with_the_layer():
    tensors, _ = random_layer(16, 32, 32)
    with pytest.raises(CheckpointError, match=r"the\.layer has 12 outputs"):
        AWQReader(SETTINGS).is_coded("the.layer", (12, 32), headers(tensors))


@pytest.mark.parametrize("missing", ["qweight", "qzeros", "scales"])
def test_a_missing_tensor_is_named(missing):
    found = headers(random_layer(16, 32, 32)[0])
    del found[missing]
    with pytest.raises(CheckpointError, match=rf"lacks the\.layer\.{missing}"):
        AWQReader(SETTINGS).is_coded("the.layer", (16, 32), found)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("bits", 3),
        ("version", "gemv"),
        ("format", "marlin"),
        ("group_size", 0),
        ("zero_point", "yes"),
        ("grup_size", 64),
    ],
)
def test_settings_that_are_not_known_are_refused_by_name(key, value):
    with pytest.raises(UnsupportedModelError, match=key) as error:
        AWQReader(SETTINGS | {key: value})
    assert error.value.field == key


def test_a_folder_keeps_its_head_dense(packed_folder):
    """Pins the fault of demanding packed tensors for a head that is stored in full precision."""
    expected: dict[str, np.ndarray] = {}

    def parts(layer: str, weight: torch.Tensor) -> dict[str, torch.Tensor] | None:
        if layer == "lm_head":
            return None
        tensors, expected[layer] = random_layer(*weight.shape, 32, seed=len(expected))
        return tensors

    checkpoint = open_checkpoint(packed_folder(parts, SETTINGS))
    assert checkpoint.coded("lm_head") is None
    assert checkpoint.get("lm_head.weight").shape == (320, 64)
    for layer, weight in expected.items():
        assert checkpoint.coded(layer) is not None
        assert np.array_equal(checkpoint.get(f"{layer}.weight").numpy(), weight), layer
    half = checkpoint.get("model.layers.0.mlp.up_proj.weight", torch.bfloat16)
    assert torch.equal(
        half, torch.from_numpy(expected["model.layers.0.mlp.up_proj"]).to(torch.bfloat16)
    )


def test_a_layer_without_any_weight_is_named(packed_folder):
    name = "model.layers.1.mlp.down_proj"

    def parts(layer: str, weight: torch.Tensor) -> dict[str, torch.Tensor] | None:
        return {} if layer == name else random_layer(*weight.shape, 32)[0]

    with pytest.raises(CheckpointError, match=rf"lacks the tensor '{name}\.weight'"):
        open_checkpoint(packed_folder(parts, SETTINGS))
