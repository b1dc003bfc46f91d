"""Verification of drafts in Triton: against float64, and the distribution it promises."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from infopt.kernels.triton_ops import references
from infopt.kernels.triton_ops.common import KernelArgumentError
from infopt.kernels.triton_ops.rejection import BLOCK, verify_drafts

few = settings(max_examples=6, deadline=None, derandomize=True)


def random_case(seqs, k, size, with_draft, device, spread=2.0):
    target = (torch.randn(seqs, k + 1, size, device=device) * spread).softmax(-1)
    draft = (torch.randn(seqs, k, size, device=device) * spread).softmax(-1)
    drafted = torch.multinomial(draft.flatten(0, 1), 1).view(seqs, k)
    counts = torch.randint(0, k + 1, (seqs,), dtype=torch.int32, device=device)
    uniforms = torch.rand(seqs, k + 1, device=device)
    return drafted, counts, target, draft if with_draft else None, uniforms


@few
@given(
    seqs=st.integers(1, 5),
    k=st.integers(1, 5),
    size=st.sampled_from([2, 33, BLOCK, BLOCK + 5]),
    with_draft=st.booleans(),
    seed=st.integers(0, 1000),
)
def test_equals_reference(seqs, k, size, with_draft, seed, device):
    torch.manual_seed(seed)
    case = random_case(seqs, k, size, with_draft, device)
    accepted, tokens = verify_drafts(*case)
    expected, sums = references.verify_drafts(*case)
    assert torch.equal(accepted.cpu(), expected)
    wanted = case[-1][:, -1].double() * sums[:, -1]
    for token, row, at in zip(tokens.tolist(), sums, wanted, strict=True):
        slack = 1e-5 * row[-1]
        assert row[token] > at - slack
        assert token == 0 or row[token - 1] <= at + slack


@pytest.mark.parametrize("with_draft", [True, False])
def test_output_is_distributed_as_the_target(with_draft, device):
    """Over many draws the first token has the target's distribution, whatever the draft's."""
    torch.manual_seed(0)
    n, size = 150, 4
    p = torch.tensor([0.5, 0.25, 0.2, 0.05], device=device)
    q = torch.tensor([0.1, 0.6, 0.1, 0.2], device=device)
    drafted = torch.multinomial(q.expand(n, size), 1)
    counts = torch.ones(n, dtype=torch.int32, device=device)
    target, draft = p.expand(n, 2, size).contiguous(), q.expand(n, 1, size).contiguous()
    uniforms = torch.rand(n, 2, device=device)
    if not with_draft:
        drafted = torch.ones_like(drafted)
    accepted, after = verify_drafts(
        drafted, counts, target, draft if with_draft else None, uniforms
    )
    first = torch.where(accepted == 1, drafted[:, 0], after.long())
    share = torch.bincount(first, minlength=size) / n
    # Four standard deviations of a share over 150 draws are at most 0.164; q is 0.4 away.
    assert (share - p).abs().max() < 0.164


def test_equal_distributions_accept_everything(device):
    torch.manual_seed(1)
    drafted, _, target, _, uniforms = random_case(3, 4, 20, False, device)
    counts = torch.full((3,), 4, dtype=torch.int32, device=device)
    accepted, _ = verify_drafts(drafted, counts, target, target[:, :4].contiguous(), uniforms)
    assert accepted.tolist() == [4, 4, 4]


def test_a_draft_the_target_excludes_is_refused_and_not_drawn_again(device):
    target = torch.tensor([[[0.0, 1.0, 0.0], [1.0, 0.0, 0.0]]], device=device)
    drafted = torch.tensor([[0]], device=device)
    counts = torch.ones(1, dtype=torch.int32, device=device)
    uniforms = torch.tensor([[1e-6, 0.999999]], device=device)
    accepted, token = verify_drafts(drafted, counts, target, None, uniforms)
    assert (accepted.item(), token.item()) == (0, 1)


def test_empty_batch(device):
    drafted = torch.empty(0, 2, dtype=torch.int64, device=device)
    counts = torch.empty(0, dtype=torch.int32, device=device)
    target, uniforms = torch.empty(0, 3, 8, device=device), torch.empty(0, 3, device=device)
    assert verify_drafts(drafted, counts, target, None, uniforms)[0].shape == (0,)


@pytest.mark.parametrize(
    ("place", "change", "message"),
    [
        (0, lambda t: t.int(), "drafted must be int64"),
        (1, lambda t: t.long(), "counts must be int32"),
        (2, lambda t: t[:, :-1], "target must have shape"),
        (2, lambda t: t.half(), "target must be float32"),
        (3, lambda t: t[..., :-1], "draft must have shape"),
        (4, lambda t: t[:, :-1], "uniforms must have shape"),
        (2, lambda t: t.transpose(0, 1).contiguous().transpose(0, 1), "target must be contiguous"),
    ],
)
def test_wrong_arguments_raise(place, change, message, device):
    case = list(random_case(2, 3, 8, True, device))
    case[place] = change(case[place])
    with pytest.raises(KernelArgumentError, match=message):
        verify_drafts(*case)
