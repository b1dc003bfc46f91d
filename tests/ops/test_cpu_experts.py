"""The experts in C++ and their reference: float64, empty experts, bits of a token in any batch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from infopt.ops import resolve_ops
from infopt.ops.cpu.experts import CppExperts, load_experts
from infopt.ops.cpu.fp8 import Fp8Linear
from infopt.ops.cpu.linear import PackedLinear
from infopt.ops.cpu.quantized import CodeLinear
from infopt.ops.experts import ExpertSpec, OneByOneExperts
from infopt.ops.linear import DenseLinear

DTYPES = [torch.float32, torch.bfloat16]


def coded(weight: torch.Tensor) -> CodeLinear:
    """A weight that is a multiple of 1/8 in [-1, 7/8], in 4 bits: nothing is lost."""
    groups = -(-weight.shape[1] // 32)
    scale = torch.full((weight.shape[0], groups), 1 / 8)
    codes = (weight.float() * 8 + 8).to(torch.uint8)
    return CodeLinear(codes, scale, scale * -8, code_bits=4, group_size=32)


def float8(weight: torch.Tensor) -> Fp8Linear:
    return Fp8Linear(weight.to(torch.float8_e4m3fn), torch.ones(weight.shape[0]))


def random_weights(num_experts: int, hidden: int, inner: int, seed: int = 0):
    """Weights of gate_up and down per expert: multiples of 1/8, which every format here holds."""
    generator = torch.Generator().manual_seed(seed)
    shapes = ((num_experts, 2 * inner, hidden), (num_experts, hidden, inner))
    return [torch.randint(-8, 8, shape, generator=generator) / 8 for shape in shapes]


def make_spec(weights, dtype: torch.dtype, linear: Callable[..., Any], activation="silu"):
    gate_up, down = ([linear(w.to(dtype)) for w in part] for part in weights)
    return ExpertSpec(gate_up, down, activation, dtype)


def route(tokens: int, k: int, experts: int, seed: int, skipped: float = 0.2):
    """Different experts per token, some of them left out."""
    generator = torch.Generator().manual_seed(seed)
    order = torch.rand(tokens, experts, generator=generator).argsort(1)[:, :k]
    out = torch.rand(tokens, k, generator=generator) < skipped
    return order.masked_fill(out, -1), torch.rand(tokens, k, generator=generator)


def exact(weights, x, ids, shares, activation="silu"):
    """All experts for all tokens, in float64; also the same of absolute values, for bounds."""
    gate_up, down = (part.double() for part in weights)
    act = F.silu if activation == "silu" else lambda g: F.gelu(g, approximate="tanh")
    gate, up = torch.einsum("eoh,th->teo", gate_up, x.double()).chunk(2, -1)
    inner = act(gate) * up
    size = torch.einsum("eoh,th->teo", gate_up.abs(), x.double().abs()).chunk(2, -1)
    # An error of a sum is relative to the sum of absolute values; act bends it by at most 1.2.
    inner_size = 1.2 * size[0] * size[1] + inner.abs()
    every = torch.einsum("eoh,teh->teo", down, inner)
    every_size = torch.einsum("eoh,teh->teo", down.abs(), inner_size)
    chosen = F.one_hot(ids.clamp_min(0), down.shape[0]).double()
    chosen = (chosen * (ids >= 0).unsqueeze(-1) * shares.double().unsqueeze(-1)).sum(1)
    return [torch.einsum("te,teo->to", chosen, part) for part in (every, every_size)]


@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    tokens=st.one_of(st.integers(0, 9), st.sampled_from([16, 33, 70])),
    k=st.integers(1, 4),
    num_experts=st.sampled_from([4, 7, 19]),
    sizes=st.sampled_from([(1, 1), (33, 7), (64, 32), (100, 70)]),
    linear=st.sampled_from([PackedLinear, coded, float8]),
    dtype=st.sampled_from(DTYPES),
    activation=st.sampled_from(["silu", "gelu_tanh"]),
    one_for_all=st.booleans(),
    seed=st.integers(0, 2**20),
)
def test_equals_float64(
    cpu_isa, tokens, k, num_experts, sizes, linear, dtype, activation, one_for_all, seed
):
    weights = random_weights(num_experts, *sizes, seed=seed)
    ids, shares = route(tokens, k, num_experts, seed)
    if one_for_all:  # all other experts are without tokens
        ids = torch.where(ids >= 0, num_experts - 1, -1)
    x = torch.randn(tokens, sizes[0], generator=torch.Generator().manual_seed(seed)).to(dtype)
    spec = make_spec(weights, dtype, linear, activation)
    expected, size = exact(weights, x, ids, shares, activation)
    ops = resolve_ops("auto", torch.device("cpu"), dtype)
    for experts in (CppExperts(spec), OneByOneExperts(spec, ops, "asked for")):
        y = experts(x, ids, shares)
        assert y.dtype == dtype
        assert y.shape == x.shape
        # Codes meet activations of 16 bits, whose step is 2 ** -15 of the largest.
        bound = (2e-5 if dtype == torch.float32 else 0.02) * (size + size.amax(-1, keepdim=True))
        assert ((y.double() - expected).abs() <= bound + 1e-30).all()


@pytest.mark.parametrize("linear", [PackedLinear, coded, float8])
def test_bits_of_a_token_do_not_depend_on_other_tokens(cpu_isa, set_threads, linear):
    """Alone, in any company, routed with few or many others, at any number of threads."""
    experts = CppExperts(make_spec(random_weights(6, 96, 40), torch.float32, linear))
    ids, shares = route(70, 3, 6, 0)
    ids[40:, 0] = 2  # one expert with many tokens, others with few
    x = torch.randn(70, 96, generator=torch.Generator().manual_seed(0))
    set_threads(1)
    whole = experts(x, ids, shares)
    for threads in (1, 3):
        set_threads(threads)
        for part in (slice(0, 1), slice(3, 5), slice(11, 44), slice(69, 70), slice(0, 70)):
            assert torch.equal(experts(x[part], ids[part], shares[part]), whole[part])


@pytest.mark.parametrize("dtype", DTYPES)
def test_more_slots_than_fit_at_a_time(cpu_isa, dtype):
    """A long prompt is cut into parts; no token may get another's results."""
    experts = CppExperts(make_spec(random_weights(3, 8, 4), dtype, PackedLinear))
    ids, shares = route(5000, 2, 3, 1)
    x = torch.randn(5000, 8, generator=torch.Generator().manual_seed(0)).to(dtype)
    y = experts(x, ids, shares)
    for part in (slice(0, 8), slice(4090, 4100), slice(4992, 5000)):
        alone = experts(x[part], ids[part], shares[part])
        torch.testing.assert_close(y[part], alone)


def test_padding_is_never_computed(cpu_isa):
    """Rows without experts give zeros, whatever they and their weights hold, and disturb nobody."""
    experts = CppExperts(make_spec(random_weights(4, 32, 16), torch.float32, PackedLinear))
    ids, shares = route(8, 2, 4, 0, skipped=0.0)
    x = torch.randn(8, 32)
    expected = experts(x, ids, shares)
    ids[5:], shares[5:], x[5:] = -1, float("nan"), float("nan")
    ids[0, 0], shares[0, 0] = -1, float("nan")
    for run in (experts, OneByOneExperts(experts_spec(), reference_ops(), "asked for")):
        y = run(x, ids, shares)
        assert (y[5:] == 0).all()
        assert y[0].isfinite().all()
        torch.testing.assert_close(y[1:5], expected[1:5], rtol=1e-4, atol=1e-4)


def experts_spec() -> ExpertSpec:
    return make_spec(random_weights(4, 32, 16), torch.float32, DenseLinear)


def reference_ops():
    return resolve_ops("reference", torch.device("cpu"), torch.float32)


def test_the_same_expert_twice_counts_twice(cpu_isa):
    experts = CppExperts(make_spec(random_weights(2, 32, 16), torch.float32, PackedLinear))
    x, half = torch.randn(3, 32), torch.full((3, 2), 0.5)
    once = experts(x, torch.tensor([[1, -1]] * 3), torch.ones(3, 2))
    torch.testing.assert_close(experts(x, torch.tensor([[1, 1]] * 3), half), once)


def test_strided_rows(cpu_isa):
    experts = CppExperts(make_spec(random_weights(4, 32, 16), torch.float32, PackedLinear))
    ids, shares = route(6, 2, 4, 0)
    wide = torch.randn(12, 50)
    rows = wide[::2, 10:42]
    assert torch.equal(experts(rows, ids, shares), experts(rows.contiguous(), ids, shares))


def test_products_that_do_not_fit_are_refused(cpu_isa):
    weights = random_weights(2, 32, 16)
    good = make_spec(weights, torch.float32, PackedLinear)
    for spec, error in (
        (ExpertSpec(good.gate_up[:1], good.down, "silu", torch.float32), ValueError),
        (ExpertSpec([], [], "silu", torch.float32), ValueError),
        (ExpertSpec(good.down, good.gate_up, "silu", torch.float32), ValueError),
        (ExpertSpec(good.gate_up, good.down, "relu", torch.float32), ValueError),
        (ExpertSpec(good.gate_up, good.down, "silu", torch.bfloat16), TypeError),
    ):
        with pytest.raises(error):
            CppExperts(spec)


def test_wrong_arguments_raise_before_any_expert_runs(cpu_isa):
    spec = make_spec(random_weights(4, 32, 16), torch.float32, PackedLinear)
    experts = CppExperts(spec)
    x, ids, shares = torch.randn(3, 32), torch.zeros(3, 2, dtype=torch.int64), torch.ones(3, 2)
    for wrong in (4, -2):
        bad = ids.clone()
        bad[1, 1] = wrong
        for run in (experts, OneByOneExperts(spec, reference_ops(), "asked for")):
            with pytest.raises(IndexError, match=f"no expert {wrong}"):
                run(x, bad, shares)
    for arguments, error in (
        ((x[:, :-1].contiguous(), ids, shares), ValueError),
        ((x.bfloat16(), ids, shares), TypeError),
        ((x, ids.int(), shares), TypeError),
        ((x, ids[:2], shares), ValueError),
        ((x, ids[:, :0], shares[:, :0]), ValueError),
        ((x, ids, shares[:, :1]), ValueError),
        ((x, ids, shares.double()), TypeError),
    ):
        with pytest.raises(error):
            experts(*arguments)


def test_foreign_products_run_one_by_one_and_say_so(cpu_isa):
    spec = experts_spec()
    experts = load_experts()(spec, reference_ops())
    assert isinstance(experts, OneByOneExperts)
    assert "DenseLinear" in experts.choice.reason
    packed = make_spec(random_weights(2, 32, 16), torch.float32, PackedLinear)
    ops = resolve_ops("auto", torch.device("cpu"), torch.float32)
    assert ops.experts(packed, ops).choice.backend == "cpu"
    assert reference_ops().experts(packed, reference_ops()).choice.backend == "reference"
