"""The reference and the oneDNN matrix product."""

from __future__ import annotations

import pytest
import torch

from infopt.ops.dispatch import OpTarget
from infopt.ops.linear import IMPLEMENTATIONS, DenseLinear, OneDnnLinear


def _linears():
    names = {DenseLinear: "reference", OneDnnLinear: "onednn"}
    target = OpTarget(torch.device("cpu"), torch.float32)
    usable = {i.backend for i in IMPLEMENTATIONS if i.why_not(target) is None}
    return [cls for cls, name in names.items() if name in usable]


@pytest.mark.parametrize("cls", _linears())
@pytest.mark.parametrize(("dtype", "bound"), [(torch.float32, 1e-4), (torch.bfloat16, 0.5)])
@pytest.mark.parametrize("rows", [1, 2, 7, 40])
@pytest.mark.parametrize("with_bias", [False, True])
def test_equals_float64(cls, dtype, bound, rows, with_bias):
    torch.manual_seed(rows)
    x, weight = torch.randn(rows, 576).to(dtype), torch.randn(100, 576).to(dtype)
    bias = torch.randn(100).to(dtype) if with_bias else None
    linear = cls(weight, bias)
    y = linear(x)
    expected = x.double() @ weight.double().t() + (0 if bias is None else bias.double())
    assert y.shape == (rows, 100)
    assert y.dtype == dtype
    assert (y.double() - expected).abs().max() <= bound
    assert (linear.in_features, linear.out_features) == (576, 100)
    assert linear.num_bytes == weight.nbytes + (0 if bias is None else bias.nbytes)


@pytest.mark.parametrize("cls", _linears())
def test_float32_bits_do_not_depend_on_the_batch(cls, set_threads):
    linear = cls(torch.randn(192, 64))
    x = torch.randn(64, 64)
    set_threads(1)
    whole = linear(x)
    for threads in (1, 2):
        set_threads(threads)
        for rows in (1, 2, 3, 5, 8, 16, 33, 64):
            assert torch.equal(linear(x[:rows]), whole[:rows]), (threads, rows)
            assert torch.equal(linear(x[64 - rows :]), whole[64 - rows :]), (threads, rows)
