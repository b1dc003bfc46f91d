"""Packing, odd groups and settings of packed layers."""

from __future__ import annotations

import sys

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from infopt.errors import CheckpointError, DependencyError, UnsupportedModelError
from infopt.models.packed import StoredTensor
from infopt.quantization.coded import CodedWeight, WeightFormat
from infopt.quantization.layer_parts import (
    PartSpec,
    Settings,
    check_parts,
    num_words,
    pack,
    unpack,
    with_even_groups,
    without_middle_zeros,
)


def random_codes(shape: tuple[int, int], bits: int, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, 2**bits, shape, generator=generator).to(torch.uint8)


@settings(max_examples=60, deadline=None)
@given(
    bits=st.sampled_from([2, 3, 4, 5, 6, 7, 8]),
    rows=st.integers(1, 5),
    columns=st.integers(1, 101),
    dim=st.sampled_from([0, 1]),
    seed=st.integers(0, 9),
)
def test_codes_lie_densely_from_the_lowest_bit_on(bits, rows, columns, dim, seed):
    codes = random_codes((rows, columns), bits, seed)
    words = pack(codes if dim == 1 else codes.T, bits, dim)
    assert torch.equal(
        unpack(words, bits, (rows, columns) if dim else (columns, rows), dim),
        (codes if dim == 1 else codes.T),
    )
    by_row = words if dim == 1 else words.T
    assert by_row.shape == (rows, num_words(columns, bits))
    for row, code in zip(by_row.tolist(), codes.tolist(), strict=True):
        number = sum(value << (bits * i) for i, value in enumerate(code))
        stored = sum((word % 2**32) << (32 * i) for i, word in enumerate(row))
        assert stored == number


@settings(max_examples=40, deadline=None)
@given(
    num_in=st.integers(1, 40).map(lambda n: 8 * n),
    group=st.sampled_from([32, 64, 128]),
    symmetric=st.booleans(),
)
def test_even_groups_stand_for_the_same_weight(num_in, group, symmetric):
    num_groups = -(-num_in // group)
    generator = torch.Generator().manual_seed(num_in)
    scale = torch.rand(6, num_groups, generator=generator)
    zero = None if symmetric else random_codes((6, num_groups), 4)
    coded = CodedWeight(
        WeightFormat(4, group, symmetric), random_codes((6, num_in), 4), scale, zero
    )
    even = with_even_groups(coded)
    even.check("layer")
    even.format.check(num_in, "layer")
    assert torch.equal(even.dequantize(), coded.dequantize())
    assert (even is coded) == (num_in % group == 0)


def test_only_zero_points_that_are_all_in_the_middle_go():
    zero = torch.full((2, 2), 8, dtype=torch.uint8)
    coded = CodedWeight(WeightFormat(4, 4, False), random_codes((2, 8), 4), torch.ones(2, 2), zero)
    found = without_middle_zeros(coded)
    assert (found.zero, found.format) == (None, WeightFormat(4, 4))
    assert torch.equal(found.dequantize(), coded.dequantize())
    zero[1, 1] = 7
    assert without_middle_zeros(coded) is coded


def test_tensors_that_do_not_fit_are_named():
    specs = {"a": PartSpec(("I32",), ((2,), ())), "b": PartSpec(("F16",), ((3,),), False)}
    check_parts("x", {"a": StoredTensor("I32", ())}, specs)
    with pytest.raises(CheckpointError, match=r"lacks x\.a"):
        check_parts("x", {}, specs)
    with pytest.raises(CheckpointError, match=r"holds x\.c"):
        check_parts("x", {"a": StoredTensor("I32", ()), "c": StoredTensor("I32", ())}, specs)
    with pytest.raises(CheckpointError, match=r"x\.a is I64 \(2,\).*demands I32 \(2,\) or \(\)"):
        check_parts("x", {"a": StoredTensor("I64", (2,))}, specs)
    with pytest.raises(CheckpointError, match=r"x\.b is F16 \(4,\)"):
        check_parts("x", {"a": StoredTensor("I32", ()), "b": StoredTensor("F16", (4,))}, specs)


def test_settings_are_typed_and_null_means_the_default():
    values = Settings({"bits": None, "size": True, "name": "x"}, "gptq")
    assert values.get("bits", int, 4) == 4
    assert values.get("other", str, "y") == "y"
    with pytest.raises(UnsupportedModelError, match="size=True"):
        values.get("size", int, 4)
    with pytest.raises(UnsupportedModelError, match="name='x'"):
        values.get("name", str, "y", lambda name: name == "y")


@pytest.mark.parametrize("missing", ["compressed_tensors", "compressed_tensors.compressors"])
def test_a_missing_package_is_named(monkeypatch, missing):
    for name in list(sys.modules):
        if name == missing or name.startswith(f"{missing}."):
            monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.setitem(sys.modules, missing, None)
    with pytest.raises(DependencyError, match="compressed-tensors"):
        pack(random_codes((2, 8), 4), 4, 1)
