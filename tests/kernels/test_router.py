"""The router in Triton against float64."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from infopt.kernels.triton_ops import references
from infopt.kernels.triton_ops.common import KernelArgumentError
from infopt.kernels.triton_ops.router import route

few = settings(max_examples=8, deadline=None, derandomize=True)


@st.composite
def options(draw):
    groups = draw(st.sampled_from([1, 2, 4, 8]))
    experts = groups * draw(st.sampled_from([2, 4, 8])) if groups > 1 else draw(st.integers(1, 70))
    top_groups = draw(st.integers(1, groups))
    k = draw(st.integers(1, min(8, top_groups * experts // groups)))
    return (
        experts,
        {
            "k": k,
            "scoring": draw(st.sampled_from(["softmax", "sigmoid"])),
            "num_groups": groups,
            "top_groups": top_groups,
            "best_two": groups > 1 and draw(st.booleans()),
            "renormalize": draw(st.booleans()),
            "factor": draw(st.sampled_from([1.0, 2.5])),
        },
        draw(st.booleans()),
    )


@few
@given(case=options(), tokens=st.integers(1, 5), seed=st.integers(0, 1000))
def test_equals_reference(case, tokens, seed, device):
    experts, given_options, with_bias = case
    torch.manual_seed(seed)
    logits = torch.randn(tokens, experts, device=device)
    bias = torch.randn(experts, device=device) * 0.1 if with_bias else None
    ids, weights = route(logits, bias=bias, **given_options)
    expected_ids, expected = references.route(logits, bias=bias, **given_options)
    assert torch.equal(ids.long(), expected_ids)
    assert (weights.double() - expected).abs().max() <= 1e-6


def test_ties_go_to_the_lowest_id(device):
    ids, weights = route(torch.zeros(2, 12, device=device), 3)
    assert ids.tolist() == [[0, 1, 2]] * 2
    assert torch.allclose(weights, torch.full_like(weights, 1 / 3))


def test_the_bias_chooses_but_does_not_weigh(device):
    logits = torch.tensor([[2.0, 1.0, 0.0, -1.0]], device=device)
    bias = torch.tensor([-5.0, 0.0, 0.0, 5.0], device=device)
    ids, weights = route(logits, 2, scoring="sigmoid", bias=bias, renormalize=False)
    assert ids.tolist() == [[3, 1]]
    assert torch.allclose(weights, logits[:, [3, 1]].sigmoid())


def test_strided_and_empty_logits(device):
    wide = torch.randn(3, 40, device=device)
    assert torch.equal(route(wide[:, :30], 4)[0], route(wide[:, :30].contiguous(), 4)[0])
    assert route(wide[:0], 4)[0].shape == (0, 4)


@pytest.mark.parametrize(
    ("given_options", "message"),
    [
        ({"k": 0}, "k must be in 1"),
        ({"k": 9}, "k must be in 1"),
        ({"k": 2, "scoring": "relu"}, "softmax or sigmoid"),
        ({"k": 2, "num_groups": 3}, "powers of two"),
        ({"k": 2, "num_groups": 2, "top_groups": 3}, "top_groups must be in"),
        ({"k": 5, "num_groups": 2, "top_groups": 1}, "k must be in 1 .. 4"),
        ({"k": 1, "num_groups": 8, "best_two": True}, "two experts"),
        ({"k": 1, "bias": torch.zeros(7)}, "bias must have shape"),
        ({"k": 1, "bias": torch.zeros(8).half()}, "bias must be float32"),
    ],
)
def test_wrong_arguments_raise(given_options, message, device):
    if "bias" in given_options:
        given_options = given_options | {"bias": given_options["bias"].to(device)}
    with pytest.raises(KernelArgumentError, match=message):
        route(torch.zeros(2, 8, device=device), **given_options)


def test_too_many_experts_raise(device):
    with pytest.raises(KernelArgumentError, match="1024"):
        route(torch.zeros(1, 1025, device=device), 1)
