"""Grouped experts beside the reference, on a GPU where there is one, else in the interpreter."""

from __future__ import annotations

import importlib.util

import pytest
import torch

from infopt.ops import resolve_ops
from infopt.ops.experts import ExpertSpec, OneByOneExperts
from infopt.ops.linear import DenseLinear

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("triton") is None, reason="triton is not installed"
)
DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
BOUND = {torch.float32: 1e-5, torch.bfloat16: 0.02}


def make_spec(num_experts: int, dtype: torch.dtype, bias: bool = False) -> ExpertSpec:
    generator = torch.Generator().manual_seed(0)

    def linear(out: int, num_in: int) -> DenseLinear:
        weight = torch.randn(out, num_in, generator=generator) / num_in**0.5
        add = torch.ones(out, dtype=dtype, device=DEVICE) if bias else None
        return DenseLinear(weight.to(DEVICE, dtype), add)

    gate_up = [linear(2 * 40, 48) for _ in range(num_experts)]
    return ExpertSpec(gate_up, [linear(48, 40) for _ in range(num_experts)], "silu", dtype)


def route(tokens: int, k: int, experts: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Different experts per token, a fifth of them left out."""
    generator = torch.Generator().manual_seed(tokens)
    order = torch.rand(tokens, experts, generator=generator).argsort(1)[:, :k]
    out = torch.rand(tokens, k, generator=generator) < 0.2
    shares = torch.rand(tokens, k, generator=generator)
    return order.masked_fill(out, -1).to(DEVICE), shares.to(DEVICE)


@pytest.mark.parametrize("dtype", list(BOUND))
@pytest.mark.parametrize(("tokens", "k", "experts"), [(1, 1, 3), (5, 2, 4), (37, 3, 7), (70, 2, 2)])
def test_equals_the_experts_one_by_one(dtype, tokens, k, experts):
    spec = make_spec(experts, dtype)
    ops = resolve_ops("triton", DEVICE, dtype)
    ids, shares = route(tokens, k, experts)
    x = torch.randn(tokens, 48, generator=torch.Generator().manual_seed(1)).to(DEVICE, dtype)
    expected = OneByOneExperts(spec, ops, "asked for")(x, ids, shares)
    grouped = ops.experts(spec, ops)
    assert grouped.choice.backend == "triton"
    y = grouped(x, ids, shares)
    assert y.dtype == dtype
    bound = BOUND[dtype] * expected.float().abs().max().clamp_min(1)
    assert ((y.float() - expected.float()).abs() <= bound).all()


def test_padding_is_never_computed():
    spec = make_spec(4, torch.float32)
    experts = resolve_ops("triton", DEVICE, torch.float32).experts
    run = experts(spec, resolve_ops("triton", DEVICE, torch.float32))
    ids, shares = route(8, 2, 4)
    x = torch.randn(8, 48, device=DEVICE)
    expected = run(x, ids, shares)
    ids[5:], shares[5:], x[5:] = -1, float("nan"), float("nan")
    y = run(x, ids, shares)
    assert (y[5:] == 0).all()
    torch.testing.assert_close(y[:5], expected[:5], rtol=1e-5, atol=1e-5)
    assert (run(x, torch.full_like(ids, -1), shares) == 0).all()


def test_no_token():
    ops = resolve_ops("triton", DEVICE, torch.float32)
    run = ops.experts(make_spec(2, torch.float32), ops)
    x = torch.empty(0, 48, device=DEVICE)
    ids = torch.empty(0, 2, dtype=torch.int64, device=DEVICE)
    assert run(x, ids, torch.empty(0, 2, device=DEVICE)).shape == (0, 48)


def test_products_keep_one_copy_of_their_weights():
    spec = make_spec(3, torch.float32)
    ops = resolve_ops("triton", DEVICE, torch.float32)
    before = [linear.weight.clone() for linear in spec.gate_up]
    ops.experts(spec, ops)
    pointers = [linear.weight.untyped_storage().data_ptr() for linear in spec.gate_up]
    assert len(set(pointers)) == 1
    for linear, weight in zip(spec.gate_up, before, strict=True):
        assert torch.equal(linear.weight, weight)


def test_products_that_cannot_be_grouped_run_one_by_one_and_say_why():
    ops = resolve_ops("triton", DEVICE, torch.float32)
    experts = ops.experts(make_spec(2, torch.float32, bias=True), ops)
    assert experts.choice.backend == "reference"
    assert "a bias cannot be grouped" in experts.choice.reason
