"""The MLP of a layer: a mixture of experts against float64, shared experts, padding, and bits."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from infopt.ops import resolve_ops
from infopt.ops.experts import ExpertSpec
from infopt.ops.linear import DenseLinear
from infopt.ops.mlp import DenseMlp, SparseMlp
from infopt.ops.router import Routing

HIDDEN, INNER, SHARED, EXPERTS = 48, 20, 28, 6
CPU = torch.device("cpu")


class Weights:
    """Random float32 weights of one sparse MLP."""

    def __init__(self, seed: int = 0) -> None:
        random = torch.Generator().manual_seed(seed)

        def rand(*shape: int) -> torch.Tensor:
            return torch.randn(*shape, generator=random) * 0.3

        self.router = rand(EXPERTS + 1, HIDDEN)
        self.gate_up = [rand(2 * INNER, HIDDEN) for _ in range(EXPERTS)]
        self.down = [rand(HIDDEN, INNER) for _ in range(EXPERTS)]
        self.shared = rand(2 * SHARED, HIDDEN), rand(HIDDEN, SHARED)
        self.x = rand(70, HIDDEN) * 3


def make(weights: Weights, backend: str, **changes: Any) -> tuple[SparseMlp, Any]:
    ops = resolve_ops(backend, CPU, torch.float32)
    spec = ExpertSpec(
        [ops.linear(w) for w in weights.gate_up],
        [ops.linear(w) for w in weights.down],
        "silu",
        torch.float32,
    )
    shared = DenseMlp(*(ops.linear(w) for w in weights.shared))
    mlp = SparseMlp(
        router=ops.linear(weights.router),
        routing=Routing(2),
        bias=None,
        spec=spec,
        experts=ops.experts(spec, ops),
        shared=shared,
        is_gated=True,
    )
    return replace(mlp, **changes), ops


def no_padding(x: torch.Tensor) -> torch.Tensor:
    return torch.zeros(x.shape[0], dtype=torch.bool)


def gated(x: torch.Tensor, gate_up: torch.Tensor, down: torch.Tensor) -> torch.Tensor:
    gate, up = (x @ gate_up.double().T).chunk(2, -1)
    return (F.silu(gate) * up) @ down.double().T


def exact(weights: Weights, *, gate: bool, shared: bool = True) -> torch.Tensor:
    """Token by token, in float64."""
    rows = []
    for x in weights.x.double():
        logits = weights.router.double() @ x
        best = logits[:EXPERTS].topk(2)
        shares = best.values.softmax(-1)
        y = sum(
            share * gated(x, weights.gate_up[i], weights.down[i])
            for share, i in zip(shares, best.indices.tolist(), strict=True)
        )
        if shared:
            y = y + (logits[-1].sigmoid() if gate else 1.0) * gated(x, *weights.shared)
        rows.append(y)
    return torch.stack(rows)


@pytest.mark.parametrize("backend", ["auto", "reference"])
@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, {"gate": True}),
        ({"is_gated": False}, {"gate": False}),
        ({"shared": None, "is_gated": False}, {"gate": False, "shared": False}),
    ],
)
def test_equals_float64(backend: str, changes: dict, expected: dict) -> None:
    weights = Weights()
    mlp, ops = make(weights, backend, **changes)
    y = mlp(weights.x, "silu", ops, no_padding(weights.x))
    wanted = exact(weights, **expected)
    assert (y.double() - wanted).abs().max() <= 1e-5 * wanted.abs().max()


@pytest.mark.parametrize("backend", ["auto", "reference"])
def test_bits_of_a_row_do_not_depend_on_the_batch(backend: str) -> None:
    weights = Weights()
    mlp, ops = make(weights, backend)
    whole = mlp(weights.x, "silu", ops, no_padding(weights.x))
    for part in (slice(0, 1), slice(3, 5), slice(11, 44), slice(69, 70)):
        x = weights.x[part].clone()
        assert torch.equal(mlp(x, "silu", ops, no_padding(x)), whole[part])


class Recorder:
    """Stands for the experts and keeps who was sent to them."""

    def __init__(self, experts: Any) -> None:
        self.experts, self.choice, self.ids = experts, experts.choice, []

    def __call__(self, x, ids, weights):
        self.ids.append(ids)
        return self.experts(x, ids, weights)


def test_padding_goes_to_no_expert_and_changes_nobody() -> None:
    """5 real tokens among 8 rows and top 2 are 10 choices, not 16."""
    weights = Weights()
    mlp, ops = make(weights, "auto", shared=None, is_gated=False)
    recorder = Recorder(mlp.experts)
    mlp = replace(mlp, experts=recorder)
    padding = torch.tensor([True, True, False, False, False, False, True, False])
    y = mlp(weights.x[:8], "silu", ops, padding)
    assert int((recorder.ids[0] >= 0).sum()) == 10
    assert not y[padding].any()
    real = weights.x[:8][~padding]
    assert torch.equal(y[~padding], mlp(real, "silu", ops, no_padding(real)))


def test_all_products_are_listed() -> None:
    mlp, _ = make(Weights(), "reference")
    assert len(mlp.linears) == 1 + 2 * EXPERTS + 2
    assert all(isinstance(linear, DenseLinear) for linear in mlp.linears)
