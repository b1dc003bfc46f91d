"""Products by expert in Triton against float64, and the sorting of slots into blocks."""

from __future__ import annotations

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from infopt.kernels.triton_ops import references
from infopt.kernels.triton_ops.common import KernelArgumentError
from infopt.kernels.triton_ops.grouped_linear import block_rows, grouped_linear, plan_experts

few = settings(
    max_examples=4,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)


def random_ids(tokens, k, experts, device):
    return torch.stack([torch.randperm(experts)[:k] for _ in range(tokens)]).int().to(device)


@few
@given(
    tokens=st.sampled_from([1, 5, 40]),
    experts=st.sampled_from([(1, 1), (2, 6), (4, 9)]),
    rows=st.sampled_from([16, 64]),
    sizes=st.sampled_from([(7, 33), (70, 100)]),
    with_weight=st.booleans(),
)
def test_equals_float64(tokens, experts, rows, sizes, with_weight, dtype, device, assert_close):
    torch.manual_seed(tokens)
    (k, num_experts), (outputs, inputs) = experts, sizes
    ids = random_ids(tokens, k, num_experts, device)
    x = torch.randn(tokens, inputs, device=device).to(dtype)
    weight = torch.randn(num_experts, outputs, inputs, device=device).to(dtype)
    share = torch.rand(tokens * k, device=device) if with_weight else None
    blocks = plan_experts(ids, num_experts, rows)
    y = grouped_linear(x, weight, blocks, share)
    expected = references.grouped_linear(x, weight, ids, share)
    size = references.grouped_linear(x.abs(), weight.abs(), ids, share)
    assert y.dtype == dtype
    assert_close(y, expected, size=size, ulps=4 if dtype == torch.float32 else 0.6)


def test_rows_by_slot(device, assert_close):
    """The second product of an expert reads what the first one wrote, slot by slot."""
    ids = random_ids(6, 2, 4, device)
    x, weight = torch.randn(12, 20, device=device), torch.randn(4, 9, 20, device=device)
    y = grouped_linear(x, weight, plan_experts(ids, 4, 16), per_slot=True)
    expected = references.grouped_linear(x, weight, ids, per_slot=True)
    size = references.grouped_linear(x.abs(), weight.abs(), ids, per_slot=True)
    assert_close(y, expected, size=size, ulps=4)


@few
@given(tokens=st.integers(0, 60), k=st.integers(1, 4), experts=st.integers(4, 20))
def test_every_slot_is_in_one_block_of_its_expert(tokens, k, experts, device):
    torch.manual_seed(tokens)
    ids = torch.randint(0, experts, (tokens, k), dtype=torch.int32, device=device)
    blocks = plan_experts(ids, experts, 16)
    slots = blocks.slots.view(-1, 16)
    assert sorted(s for s in slots.flatten().tolist() if s < tokens * k) == list(range(tokens * k))
    for row, expert in zip(slots, blocks.expert.tolist(), strict=True):
        held = row[row < tokens * k].long()
        assert (ids.flatten()[held] == expert).all()


def test_float32_bits_do_not_depend_on_neighbours(device, exact_dot):
    torch.manual_seed(0)
    ids = random_ids(30, 2, 5, device)
    x, weight = torch.randn(30, 50, device=device), torch.randn(5, 40, 50, device=device)
    rows = block_rows(torch.float32, 60, 5)
    assert rows == block_rows(torch.float32, 100_000, 5)
    whole = grouped_linear(x, weight, plan_experts(ids, 5, rows)).view(30, 2, 40)
    for i in (0, 13):
        part = slice(i, i + 1)
        alone = grouped_linear(x[part], weight, plan_experts(ids[part], 5, rows))
        assert torch.equal(alone.view(1, 2, 40), whole[part])


def test_empty_batch(device):
    ids = torch.empty(0, 2, dtype=torch.int32, device=device)
    x, weight = torch.empty(0, 8, device=device), torch.zeros(3, 5, 8, device=device)
    assert grouped_linear(x, weight, plan_experts(ids, 3, 16)).shape == (0, 5)


def test_wrong_arguments_raise(device):
    ids = random_ids(4, 2, 3, device)
    blocks = plan_experts(ids, 3, 16)
    x, weight = torch.zeros(4, 8, device=device), torch.zeros(3, 5, 8, device=device)
    with pytest.raises(KernelArgumentError, match="ids must be int32"):
        plan_experts(ids.long(), 3, 16)
    with pytest.raises(KernelArgumentError, match="weight must be float32"):
        grouped_linear(x, weight.half(), blocks)
    with pytest.raises(KernelArgumentError, match="x must have shape"):
        grouped_linear(x[:, :7], weight, blocks)
    with pytest.raises(KernelArgumentError, match="slot_weight must have shape"):
        grouped_linear(x, weight, blocks, torch.zeros(4, device=device))
    with pytest.raises(KernelArgumentError, match="weight must be contiguous"):
        grouped_linear(x, weight.transpose(1, 2).contiguous().transpose(1, 2), blocks)
