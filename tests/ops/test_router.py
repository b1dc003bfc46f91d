"""Routing: published formulas, ties, scores against float64, and bits of a row in any batch."""

from __future__ import annotations

import importlib.util
import math
from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from infopt.ops import cpu, gpu
from infopt.ops.cpu.build import why_no_extension
from infopt.ops.router import Routing, route

LOGITS = [2.0, 1.0, 0.0, -1.0]

Choose = Callable[..., tuple[torch.Tensor, torch.Tensor]]


@pytest.fixture(scope="module", params=["reference", "cpu"])
def choose(request) -> Choose:
    """The op, in each form that runs here."""
    if request.param == "reference":
        return route
    if (reason := why_no_extension()) is not None:
        pytest.skip(reason)
    return cpu.load_route()


def sigmoid(x: float) -> float:
    return 1 / (1 + math.exp(-x))


@pytest.mark.parametrize("shift", [0.0, -10.0])
@pytest.mark.parametrize(
    ("renormalize", "expected"), [(True, [0.7311, 0.2689]), (False, [0.6439, 0.2369])]
)
def test_softmax_weights_with_and_without_renormalizing(
    choose: Choose, shift, renormalize, expected
) -> None:
    """The flag must reach the weights; logits that are all negative change nothing."""
    routing = Routing(2, renormalize=renormalize)
    ids, weights = choose(torch.tensor([LOGITS]) + shift, None, routing)
    assert ids.tolist() == [[0, 1]]
    assert weights[0].tolist() == pytest.approx(expected, abs=1e-4)


@pytest.mark.parametrize("num_experts", [8, 33, 128])
@pytest.mark.parametrize("scoring", ["softmax", "sigmoid"])
def test_ties_go_to_the_lowest_ids(choose: Choose, num_experts: int, scoring) -> None:
    logits = torch.full((3, num_experts), -5.0)
    logits[1, 5] = logits[1, 7] = 1.0
    ids, weights = choose(logits, None, Routing(3, scoring))
    assert ids.tolist() == [[0, 1, 2], [5, 7, 0], [0, 1, 2]]
    assert torch.allclose(weights[0], torch.full((3,), 1 / 3))


def test_a_bias_chooses_and_does_not_weigh(choose: Choose) -> None:
    routing = Routing(1, "sigmoid", renormalize=False)
    ids, weights = choose(torch.tensor([[0.0, 1.0]]), torch.tensor([5.0, 0.0]), routing)
    assert (ids.item(), weights.item()) == (0, 0.5)


def test_groups_that_are_not_best_are_closed(choose: Choose) -> None:
    """The best expert of all is in a group whose best two are worth less than another's."""
    logits = torch.tensor([[9.0, -9.0, 2.0, 1.9, 0.0, 0.0]])
    one = Routing(2, "sigmoid", num_groups=3, top_groups=1)
    assert choose(logits, None, one)[0].tolist() == [[0, 1]]
    two = Routing(2, "sigmoid", num_groups=3, top_groups=1, best_two=True)
    ids, weights = choose(logits, None, two)
    assert ids.tolist() == [[2, 3]]
    share = sigmoid(2.0) / (sigmoid(2.0) + sigmoid(1.9))
    assert weights[0].tolist() == pytest.approx([share, 1 - share], abs=1e-6)


def test_weights_take_the_factor_after_they_sum_to_one(choose: Choose) -> None:
    _, weights = choose(torch.randn(4, 16), None, Routing(6, "sigmoid", factor=2.5))
    assert torch.allclose(weights.sum(-1), torch.full((4,), 2.5))


def exact(logits: list[float], bias: list[float] | None, routing: Routing):
    """One token, with Python's own floats and sort."""
    powers = [math.exp(x - max(logits)) for x in logits]
    scores = [p / sum(powers) for p in powers]
    if routing.scoring == "sigmoid":
        scores = [sigmoid(x) for x in logits]
    choice = [s + b for s, b in zip(scores, bias or [0.0] * len(scores), strict=True)]
    best = sorted(range(len(choice)), key=lambda i: -choice[i])
    size = len(choice) // routing.num_groups
    groups = [choice[g * size : (g + 1) * size] for g in range(routing.num_groups)]
    taken = 2 if routing.best_two else 1
    worth = [sum(sorted(group)[-taken:]) for group in groups]
    open_groups = sorted(range(len(worth)), key=lambda g: -worth[g])[: routing.top_groups]
    chosen = [i for i in best if i // size in open_groups][: routing.top_k]
    weights = [scores[i] for i in chosen]
    total = sum(weights) if routing.renormalize else 1.0
    return chosen, [routing.factor * w / total for w in weights]


@st.composite
def routings(draw) -> tuple[int, Routing]:
    groups = draw(st.sampled_from([1, 1, 2, 4]))
    size = draw(st.integers(2, 32))
    top_groups = draw(st.integers(1, groups))
    return groups * size, Routing(
        top_k=draw(st.integers(1, min(8, top_groups * size))),
        scoring=draw(st.sampled_from(["softmax", "sigmoid"])),
        renormalize=draw(st.booleans()),
        num_groups=groups,
        top_groups=top_groups,
        best_two=draw(st.booleans()),
        factor=draw(st.sampled_from([1.0, 2.5])),
    )


@settings(max_examples=80, deadline=None)
@given(case=routings(), tokens=st.integers(1, 5), biased=st.booleans(), seed=st.integers(0, 2**20))
def test_equals_float64(choose: Choose, case, tokens: int, biased: bool, seed: int) -> None:
    num_experts, routing = case
    random = torch.Generator().manual_seed(seed)
    logits = torch.randn(tokens, num_experts, generator=random) * 3
    bias = torch.randn(num_experts, generator=random) * 0.3 if biased else None
    ids, weights = choose(logits, bias, routing)
    for row in range(tokens):
        given_bias = None if bias is None else bias.tolist()
        chosen, expected = exact(logits[row].tolist(), given_bias, routing)
        assert ids[row].tolist() == chosen
        assert weights[row].tolist() == pytest.approx(expected, rel=2e-5)


@pytest.mark.parametrize("scoring", ["softmax", "sigmoid"])
@pytest.mark.parametrize("num_experts", [5, 8, 60, 128])
def test_bits_of_a_row_do_not_depend_on_the_batch(
    choose: Choose, num_experts: int, scoring
) -> None:
    """Rows are cut from a wider product, as they are where it also gates the shared expert."""
    routing = Routing(min(8, num_experts - 1), scoring, factor=1.7)
    wide = torch.randn(97, num_experts + 1)[:, :num_experts]
    whole = choose(wide, None, routing)
    for part in (slice(0, 1), slice(5, 7), slice(11, 44), slice(96, 97)):
        ids, weights = choose(wide[part].clone(), None, routing)
        assert torch.equal(ids, whole[0][part])
        assert torch.equal(weights, whole[1][part])


@pytest.mark.parametrize(("scoring", "biased"), [("softmax", False), ("sigmoid", True)])
def test_the_cpp_op_chooses_alike_in_both_types(choose: Choose, scoring, biased: bool) -> None:
    """Many rows, more than one thread; bfloat16 logits are widened, not rounded again."""
    routing = Routing(8, scoring, num_groups=8, top_groups=4, best_two=True, factor=2.5)
    wide = torch.randn(300, 257, generator=torch.Generator().manual_seed(0)) * 2
    bias = torch.linspace(-0.2, 0.2, 256) if biased else None
    for dtype in (torch.float32, torch.bfloat16):
        logits = wide.to(dtype)[:, :256]
        ids, weights = choose(logits, bias, routing)
        expected_ids, expected = route(logits.float(), bias, routing)
        assert ids.dtype == torch.int64
        assert weights.dtype == torch.float32
        assert torch.equal(ids, expected_ids)
        assert torch.allclose(weights, expected, rtol=1e-5)


@pytest.mark.parametrize(
    ("bias", "routing", "message"),
    [
        (None, Routing(9), "cannot choose 9 of 8 experts"),
        (None, Routing(0), "cannot choose 0 of 8"),
        (None, Routing(1, num_groups=3), "8 experts do not form 3 groups"),
        (None, Routing(1, num_groups=2, top_groups=3), "cannot choose 3 of 2 groups"),
        (None, Routing(1, num_groups=8, best_two=True), "no best two"),
        (torch.zeros(7), Routing(1), "bias must have shape"),
        (torch.zeros(8, dtype=torch.float64), Routing(1), "bias must be"),
    ],
)
def test_the_cpp_op_refuses_what_it_cannot_choose(bias, routing, message: str) -> None:
    if (reason := why_no_extension()) is not None:
        pytest.skip(reason)
    with pytest.raises((ValueError, TypeError), match=message):
        cpu.load_route()(torch.zeros(2, 8), bias, routing)


@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="triton is not installed")
@settings(max_examples=6, deadline=None, derandomize=True)
@given(
    scoring=st.sampled_from(["softmax", "sigmoid"]),
    groups=st.sampled_from([1, 4]),
    renormalize=st.booleans(),
    biased=st.booleans(),
)
def test_the_triton_op_chooses_alike(scoring, groups, renormalize, biased) -> None:
    device = "cuda" if torch.cuda.is_available() else "cpu"
    top_groups = 2 if groups > 1 else 1
    routing = Routing(3, scoring, renormalize, groups, top_groups, best_two=groups > 1, factor=1.5)
    logits = torch.randn(4, 32, generator=torch.Generator().manual_seed(1)).to(device)
    bias = torch.linspace(-0.2, 0.2, 32).to(device) if biased else None
    ids, weights = gpu.load_route()(logits, bias, routing)
    expected_ids, expected = route(logits, bias, routing)
    assert ids.dtype == torch.int64
    assert torch.equal(ids, expected_ids)
    assert torch.allclose(weights, expected, atol=1e-6)
