"""RMSNorm with residual in Triton against float64."""

from __future__ import annotations

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from infopt.kernels.triton_ops.common import KernelArgumentError
from infopt.kernels.triton_ops.rms_norm import MAX_SIZE, add_rms_norm

few = settings(
    max_examples=6,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)


@few
@given(rows=st.integers(1, 5), size=st.integers(1, 700), residual=st.booleans())
def test_equals_float64(rows, size, residual, dtype, device, assert_close):
    torch.manual_seed(rows * size)
    x, added = ((torch.randn(rows, size, device=device) * 3).to(dtype) for _ in range(2))
    weight = torch.randn(size, device=device)
    normed, total = add_rms_norm(x, added if residual else None, weight, 1e-5)
    if residual:
        assert torch.equal(total, x + added)
    else:
        assert total is x
    wide = total.double()
    expected = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + 1e-5) * weight.double()
    assert normed.dtype == dtype
    assert_close(normed, expected, ulps=4 if dtype == torch.float32 else 0.6)


def test_strided_rows(device):
    wide = torch.randn(4, 200, device=device)
    weight = torch.randn(96, device=device)
    normed, total = add_rms_norm(wide[:, :96], wide[:, 100:196], weight, 1e-6)
    again = add_rms_norm(wide[:, :96].contiguous(), wide[:, 100:196].contiguous(), weight, 1e-6)
    assert torch.equal(normed, again[0])
    assert torch.equal(total, again[1])


def test_bits_do_not_depend_on_neighbours(device):
    x, residual = torch.randn(2, 9, 130, device=device)
    weight = torch.randn(130, device=device)
    whole = add_rms_norm(x, residual, weight, 1e-6)[0]
    for row in (0, 4, 8):
        part = slice(row, row + 1)
        assert torch.equal(add_rms_norm(x[part], residual[part], weight, 1e-6)[0], whole[part])


def test_empty_batch(device):
    x = torch.empty(0, 64, device=device)
    normed, total = add_rms_norm(x, x, torch.ones(64, device=device), 1e-6)
    assert normed.shape == total.shape == (0, 64)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"x": torch.zeros(3, 8).double()}, "x must be float32 or bfloat16"),
        ({"x": torch.zeros(8)}, "x must have shape"),
        ({"x": torch.zeros(8, 3).t()}, "contiguous rows"),
        ({"residual": torch.zeros(3, 9)}, "residual must have shape"),
        ({"residual": torch.zeros(3, 8).half()}, "residual must be float32"),
        ({"weight": torch.ones(8).half()}, "weight must be float32"),
        ({"weight": torch.ones(7)}, "weight must have shape"),
        ({"weight": torch.ones(8, device="meta")}, "weight must be on"),
    ],
)
def test_wrong_arguments_raise(change, message, device):
    good = {"x": torch.zeros(3, 8), "residual": torch.zeros(3, 8), "weight": torch.ones(8)}
    given = {
        name: value if value is None or value.device.type == "meta" else value.to(device)
        for name, value in (good | change).items()
    }
    with pytest.raises(KernelArgumentError, match=message):
        add_rms_norm(given["x"], given["residual"], given["weight"], 1e-6)


def test_rows_that_are_too_long_raise(device):
    size = MAX_SIZE + 1
    x, weight = torch.zeros(1, size, device=device), torch.ones(size, device=device)
    with pytest.raises(KernelArgumentError, match=str(MAX_SIZE)):
        add_rms_norm(x, None, weight, 1e-6)
