"""Codes and scales of round-to-nearest are those that compressed-tensors computes itself.

Its functions write the checkpoints that transformers and vLLM load, so equality here means that a
folder written by infopt holds what their tools would have put there.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import pytest
import torch
from compressed_tensors.quantization import QuantizationArgs, QuantizationStrategy, QuantizationType
from compressed_tensors.quantization.lifecycle.forward import dequantize, quantize
from compressed_tensors.quantization.utils import calculate_qparams

from infopt.quantization.coded import CodedWeight, WeightFormat
from infopt.quantization.rtn import rtn

OUT, IN = 48, 384

Kind = Literal["normal", "special", "tiny", "uneven", "halves"]


def weight_of(kind: Kind) -> torch.Tensor:
    """Return float32 ``(48, 384)``; 384 is divided by groups of 32, 64 and 128."""
    weight = torch.randn(OUT, IN, generator=torch.Generator().manual_seed(5))
    if kind == "special":
        weight[0] = 0.0  # groups of nothing but zeros
        weight[1] = 0.25  # constant, above zero
        weight[2] = -0.25  # constant, below zero
        weight[3, ::97] = 1e4  # one outlier per row takes all steps
        weight[4] = weight[4].abs()  # zero is the end of the range
        weight[5] = -weight[5].abs()
    if kind == "tiny":
        weight *= 1e-6
    if kind == "uneven":
        weight = weight * torch.logspace(-4, 2, OUT).unsqueeze(1) + 0.3
    if kind == "halves":  # values that lie between two codes
        weight = torch.arange(OUT * IN).view(OUT, IN).remainder(31).float() / 2 - 7.5
    return weight


@dataclass(frozen=True)
class Theirs:
    """What compressed-tensors makes of a weight.

    Attributes:
        codes: Signed integers, or float8 values.
        scale: ``(out_features, num_groups)``.
        zero: Signed, same shape.
        values: What the codes stand for.
    """

    codes: torch.Tensor
    scale: torch.Tensor
    zero: torch.Tensor
    values: torch.Tensor


def theirs(weight: torch.Tensor, fmt: WeightFormat) -> Theirs:
    is_group = fmt.group_size is not None
    args = QuantizationArgs(
        num_bits=fmt.bits,
        type=QuantizationType(fmt.number),
        symmetric=fmt.symmetric,
        strategy=QuantizationStrategy.GROUP if is_group else QuantizationStrategy.CHANNEL,
        group_size=fmt.group_size,
    )
    groups = weight.view(OUT, -1, fmt.group_size or IN)
    scale, zero = calculate_qparams(groups.amin(dim=-1), groups.amax(dim=-1), args)
    codes = quantize(weight, scale, zero, args)
    return Theirs(codes, scale, zero, dequantize(codes, scale, zero, args))


def signed(coded: CodedWeight) -> torch.Tensor:
    """Return codes as compressed-tensors counts them, from ``-2 ** (bits - 1)``."""
    return coded.codes.float() - coded.format.middle


INTEGERS = [
    *(WeightFormat(4, group, symmetric) for group in (32, 64, 128) for symmetric in (True, False)),
    WeightFormat(4, None),
    WeightFormat(3, 64),
    WeightFormat(2, 64, symmetric=False),
    WeightFormat(8, None),
    WeightFormat(8, None, symmetric=False),
    WeightFormat(8, 128),
]


def defined(weight: torch.Tensor, fmt: WeightFormat) -> torch.Tensor:
    """Return which groups have a zero point by their formula, bool ``(out_features, num_groups)``.

    For a group of zeros it is 0 / 0, and what a NaN becomes as an integer is the platform's choice.
    """
    groups = weight.view(OUT, -1, fmt.group_size or IN)
    return (groups != 0).any(dim=-1) | fmt.symmetric


@pytest.mark.parametrize("kind", ["normal", "special", "tiny", "uneven", "halves"])
@pytest.mark.parametrize("fmt", INTEGERS, ids=WeightFormat.describe)
def test_integer_codes_and_scales_are_theirs(fmt: WeightFormat, kind: Kind) -> None:
    weight = weight_of(kind)
    ours, expected = rtn(weight, fmt), theirs(weight, fmt)
    same = defined(weight, fmt)
    assert torch.equal(ours.scale, expected.scale)
    if not fmt.symmetric:
        assert ours.zero is not None
        zero = ours.zero.float() - fmt.middle
        assert torch.equal(zero[same], expected.zero.float()[same])
    same = same.repeat_interleave(fmt.group_size or IN, dim=1)
    assert torch.equal(signed(ours)[same], expected.codes.float()[same])
    torch.testing.assert_close(ours.dequantize(), expected.values, rtol=1e-6, atol=0)


@pytest.mark.parametrize("symmetric", [True, False])
def test_groups_of_zeros_stand_for_zeros(symmetric: bool) -> None:
    fmt = WeightFormat(4, 64, symmetric)
    assert torch.equal(rtn(torch.zeros(OUT, IN), fmt).dequantize(), torch.zeros(OUT, IN))


@pytest.mark.parametrize("kind", ["normal", "special", "tiny", "uneven"])
def test_float8_codes_and_scales_are_theirs(kind: Kind) -> None:
    weight, fmt = weight_of(kind), WeightFormat(8, None, number="float")
    ours, expected = rtn(weight, fmt), theirs(weight, fmt)
    assert torch.equal(ours.scale, expected.scale)
    assert torch.equal(ours.codes.float(), expected.codes.float())


def test_the_comparison_can_fail() -> None:
    """A grid that leaves one code unused, as other tools have it, is told apart."""
    weight, fmt = weight_of("normal"), WeightFormat(4, 64)
    other = weight.view(OUT, -1, 64).abs().amax(dim=-1) / 7
    assert not torch.equal(other, theirs(weight, fmt).scale)
