"""The reference activation."""

from __future__ import annotations

import math

import pytest
import torch

from infopt.ops.activation import gated_activation


def _silu(x: float) -> float:
    return x / (1 + math.exp(-x))


def _gelu_tanh(x: float) -> float:
    return 0.5 * x * (1 + math.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


@pytest.mark.parametrize(("kind", "function"), [("silu", _silu), ("gelu_tanh", _gelu_tanh)])
def test_equals_the_formula(kind, function):
    gate = torch.linspace(-6, 6, 41)
    up = torch.linspace(2, -3, 41)
    out = gated_activation(torch.stack([torch.cat([gate, up])]), kind)
    expected = [function(g) * u for g, u in zip(gate.tolist(), up.tolist(), strict=True)]
    assert torch.allclose(out[0].double(), torch.tensor(expected).double(), atol=1e-6)


def test_gate_is_the_first_half():
    out = gated_activation(torch.tensor([[0.0, 100.0, 5.0, 7.0]]), "silu")
    assert torch.equal(out, torch.tensor([[0.0, 700.0]]))


def test_input_is_left_alone():
    x = torch.randn(3, 8)
    before = x.clone()
    gated_activation(x, "gelu_tanh")
    assert torch.equal(x, before)
