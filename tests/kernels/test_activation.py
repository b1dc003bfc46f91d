"""The gated activation in Triton against float64."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from infopt.kernels.triton_ops.activation import BLOCK, KINDS, gated_activation
from infopt.kernels.triton_ops.common import KernelArgumentError

few = settings(
    max_examples=5,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)


@few
@given(rows=st.integers(1, 4), size=st.integers(1, BLOCK + 300), kind=st.sampled_from(KINDS))
def test_equals_float64(rows, size, kind, dtype, device, assert_close):
    torch.manual_seed(size)
    gate_up = (torch.randn(rows, 2 * size, device=device) * 4).to(dtype)
    gate, up = gate_up.double().chunk(2, dim=-1)
    activated = F.silu(gate) if kind == "silu" else F.gelu(gate, approximate="tanh")
    out = gated_activation(gate_up, kind)
    assert out.dtype == dtype
    # Far to the left the result is tiny beside its factors; errors are relative to gate * up there.
    size_of_error = (activated * up).abs() + 1e-3 * (gate * up).abs()
    assert_close(out, activated * up, size=size_of_error, ulps=8 if dtype == torch.float32 else 1)


@pytest.mark.parametrize("kind", KINDS)
def test_large_values_stay_finite(kind, device):
    gate_up = torch.tensor([[-1e4, -90.0, 0.0, 90.0, 1e4, 1.0, 1.0, 1.0, 1.0, 1.0]], device=device)
    assert gated_activation(gate_up, kind).tolist() == [[0.0, 0.0, 0.0, 90.0, 1e4]]


def test_strided_and_empty_rows(device):
    wide = torch.randn(3, 50, device=device)
    strided = gated_activation(wide[:, :40], "silu")
    assert torch.equal(strided, gated_activation(wide[:, :40].contiguous(), "silu"))
    assert gated_activation(wide[:0], "silu").shape == (0, 25)


@pytest.mark.parametrize(
    ("gate_up", "kind", "message"),
    [
        (torch.zeros(2, 7), "silu", "even width"),
        (torch.zeros(2, 8), "relu", "silu or gelu_tanh"),
        (torch.zeros(8), "silu", "must have shape"),
        (torch.zeros(2, 8).int(), "silu", "float32"),
        (torch.zeros(8, 2).t(), "silu", "contiguous rows"),
    ],
)
def test_wrong_arguments_raise(gate_up, kind, message, device):
    with pytest.raises(KernelArgumentError, match=message):
        gated_activation(gate_up.to(device), kind)
