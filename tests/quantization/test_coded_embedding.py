"""Rows of an embedding that stays packed."""

from __future__ import annotations

import pytest
import torch

from infopt.errors import CheckpointError, WeightFormatError
from infopt.quantization.coded import CodedWeight, WeightFormat
from infopt.quantization.coded_embedding import CodedEmbedding
from infopt.quantization.rtn import rtn

CPU = torch.device("cpu")


def coded(bits: int, group: int | None, symmetric: bool = True) -> CodedWeight:
    weight = torch.randn(37, 96, generator=torch.Generator().manual_seed(bits))
    fmt = WeightFormat(bits, group, symmetric)
    return rtn(weight, fmt, scale_dtype=torch.float16, layer="model.embed_tokens")


@pytest.mark.parametrize("symmetric", [True, False])
@pytest.mark.parametrize("group", [32, None])
@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_lookup_has_the_bits_of_the_dequantized_matrix(
    bits: int, group: int | None, symmetric: bool, dtype: torch.dtype
) -> None:
    weight = coded(bits, group, symmetric)
    ids = torch.tensor([36, 0, 5, 5])
    assert torch.equal(CodedEmbedding(weight, CPU, dtype)(ids), weight.dequantize(dtype)[ids])


def test_no_token_gives_no_row() -> None:
    rows = CodedEmbedding(coded(4, 32), CPU, torch.float32)(torch.empty(0, dtype=torch.int64))
    assert rows.shape == (0, 96)


def test_four_bits_take_half_a_byte() -> None:
    embedding = CodedEmbedding(coded(4, 32), CPU, torch.float32)
    assert embedding.num_bytes == 37 * 96 // 2 + 37 * 3 * 2


def test_a_token_outside_the_vocabulary_is_refused() -> None:
    with pytest.raises(IndexError):
        CodedEmbedding(coded(8, None), CPU, torch.float32)(torch.tensor([37]))


@pytest.mark.parametrize("fmt", [WeightFormat(3, 32), WeightFormat(8, number="float")])
def test_codes_that_no_lookup_unpacks_are_refused(fmt: WeightFormat) -> None:
    weight = coded(4, 32)
    weight.format = fmt
    if fmt.number == "float":
        weight.scale = weight.scale[:, :1]
    with pytest.raises(WeightFormatError, match=r"no embedding runs on"):
        CodedEmbedding(weight, CPU, torch.float32)


def test_scales_of_another_shape_are_refused() -> None:
    weight = coded(4, 32)
    weight.scale = weight.scale[:, :2]
    with pytest.raises(CheckpointError, match=r"the scale has shape"):
        CodedEmbedding(weight, CPU, torch.float32)
