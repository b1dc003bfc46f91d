"""The draw in C++: the candidates of the reference, its cumulative order, and bits of one row."""

from __future__ import annotations

import pytest
import torch
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from infopt.ops import resolve_ops
from infopt.ops.cpu.sampling import load_draw_tokens
from infopt.ops.sampling import DrawParams, distribution

LAST = 1 - 2**-53
"""The largest number that is drawn."""


def params(count: int, temperature=1.0, min_p=0.0, top_k=0, top_p=1.0) -> DrawParams:
    return DrawParams([temperature] * count, [min_p] * count, [top_k] * count, [top_p] * count)


def assert_draws_what_the_reference_keeps(logits: torch.Tensor, **how) -> None:
    """Aim at the middle of a candidate's share: exactly that token must come out.

    Of many candidates a hundred are tried, the first and the last among them. Shares below 1e-5 are
    left out, since single precision blurs where they begin.
    """
    probs = distribution(logits.unsqueeze(0), params(1, **how))[0]
    share = probs / probs.sum()
    wanted = (share > 1e-5).nonzero().squeeze(1)
    wanted = wanted[torch.linspace(0, len(wanted) - 1, min(len(wanted), 100)).long()]
    middles = (share.cumsum(0) - share / 2)[wanted].tolist()
    draw = load_draw_tokens()
    rows = logits.expand(len(middles), -1)
    assert draw(rows, params(len(middles), **how), middles) == wanted.tolist()
    ends = draw(logits.expand(2, -1), params(2, **how), [0.0, LAST])
    assert all(share[token] > 0 for token in ends)
    assert share[: ends[0]].sum() + share[ends[1] + 1 :].sum() < 1e-6


@settings(
    max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    # Few different logits: ties everywhere, and none that only single precision tells apart.
    levels=st.lists(st.integers(-6, 6), min_size=1, max_size=40),
    repeats=st.integers(1, 9),
    temperature=st.sampled_from([0.3, 1.0, 4.0]),
    min_p=st.sampled_from([0.0, 0.013, 0.11, 0.52, 1.0]),
    top_k=st.integers(-1, 380),
    top_p=st.floats(0.05, 1.0),
)
def test_candidates_are_those_of_the_reference(
    cpu_isa, levels, repeats, temperature, min_p, top_k, top_p
) -> None:
    logits = torch.tensor(levels * repeats) * 0.75
    how = {"temperature": temperature, "min_p": min_p, "top_k": top_k}
    near = [
        distribution(logits.unsqueeze(0), params(1, top_p=min(top_p * factor, 1.0), **how)) > 0
        for factor in (1 - 1e-5, 1 + 1e-5)
    ]
    assume(torch.equal(*near))  # else single precision may decide either way
    assert_draws_what_the_reference_keeps(logits, top_p=top_p, **how)


@pytest.mark.parametrize("vocab_size", [63, 64, 65, 5000, 49152])
@pytest.mark.parametrize(
    "how",
    [
        {},
        {"temperature": 0.2},
        {"temperature": 100.0},
        {"top_k": 1},
        {"top_k": 40},
        {"top_k": 2000},
        {"top_p": 0.5003},
        {"top_p": 0.9996},
        {"top_p": 0.9996, "temperature": 50.0},
        {"min_p": 0.05},
        {"min_p": 0.01, "top_k": 300, "top_p": 0.93, "temperature": 1.5},
    ],
)
def test_large_vocabularies(cpu_isa, vocab_size, how) -> None:
    logits = torch.randn(vocab_size, generator=torch.Generator().manual_seed(3)) * 3
    assert_draws_what_the_reference_keeps(logits, **how)


@pytest.mark.parametrize("how", [{}, {"top_k": 3}, {"top_p": 0.4}, {"min_p": 0.3}])
@pytest.mark.parametrize("temperature", [1.0, 1e-30, 0.0])
def test_masked_tokens_and_tiny_temperatures(cpu_isa, how, temperature) -> None:
    logits = torch.full((500,), float("-inf"))
    logits[[3, 130, 131, 499]] = torch.tensor([0.5, 2.0, 2.0, -1.0])
    assert_draws_what_the_reference_keeps(logits, temperature=temperature, **how)


def test_of_equals_the_lowest_ids_stay(cpu_isa) -> None:
    """Also where the equals lie in different blocks, and after another filter has cut them."""
    logits = torch.zeros(1000)
    logits[700] = 1.0
    for how, kept in (
        ({"top_k": 70}, [*range(69), 700]),
        ({"top_k": 70, "top_p": 0.5}, [*range(34), 700]),  # (69 + e) / 2 = 35.9 = 34 (33.1) + e
    ):
        rows = logits.expand(400, -1)
        drawn = load_draw_tokens()(rows, params(400, **how), [(i + 0.5) / 400 for i in range(400)])
        assert sorted(set(drawn)) == kept


def test_a_row_gives_the_same_token_in_any_batch_at_any_number_of_threads(
    cpu_isa, set_threads
) -> None:
    """Rows draw for themselves: each with its own parameters, whoever computes it."""
    count, generator = 24, torch.Generator().manual_seed(5)
    logits = torch.randn(count, 6000, generator=generator) * 2
    how = DrawParams(
        [0.5 + i / 8 for i in range(count)],
        [0.0, 0.02] * (count // 2),
        [0, 7, 1000] * (count // 3),
        [1.0, 0.9, 0.6, 1.0] * (count // 4),
    )
    numbers = torch.rand(count, generator=generator).tolist()
    draw = load_draw_tokens()
    set_threads(1)
    together = draw(logits, how, numbers)
    assert len(set(together)) > count // 2
    for threads in (1, 3):
        set_threads(threads)
        assert draw(logits, how, numbers) == together
        for i, token in enumerate(together):
            one = DrawParams(*([column[i]] for column in columns(how)))
            assert draw(logits[i : i + 1], one, numbers[i : i + 1]) == [token]


def columns(how: DrawParams):
    return (how.temperature, how.min_p, how.top_k, how.top_p)


def test_strided_rows(cpu_isa) -> None:
    wide = torch.randn(12, 700)
    numbers = [i / 6 for i in range(6)]
    draw = load_draw_tokens()
    rows = wide[::2, 100:600]
    assert draw(rows, params(6), numbers) == draw(rows.contiguous(), params(6), numbers)


@pytest.mark.parametrize("how", [{}, {"top_k": 2, "top_p": 0.5, "min_p": 0.1}])
@pytest.mark.parametrize(
    "spoil", [[float("nan")], [float("inf")], [float("inf"), float("nan")], [float("-inf")] * 70]
)
def test_a_row_with_nothing_to_draw_from_gives_token_0(cpu_isa, how, spoil) -> None:
    logits = torch.randn(3, 70)
    logits[1, 70 - len(spoil) :] = torch.tensor(spoil)
    draw = load_draw_tokens()
    tokens = draw(logits, params(3, **how), [0.7] * 3)
    alone = [draw(logits[i : i + 1], params(1, **how), [0.7]) for i in (0, 2)]
    assert tokens == [*alone[0], 0, *alone[1]]


def test_no_rows_and_bad_arguments(cpu_isa) -> None:
    draw = load_draw_tokens()
    assert draw(torch.empty(0, 5), params(0), []) == []
    logits = torch.zeros(1, 5)
    for bad, numbers, error in (
        (params(2), [0.5], ValueError),
        (params(1), [0.5, 0.5], ValueError),
        (params(1, temperature=-1.0), [0.5], ValueError),
        (params(1, min_p=1.5), [0.5], ValueError),
        (params(1, top_p=0.0), [0.5], ValueError),
        (params(1), [1.0], ValueError),
        (params(1), [float("nan")], ValueError),
    ):
        with pytest.raises(error):
            draw(logits, bad, numbers)
    for wrong, error in (
        (logits.double(), TypeError),
        (logits[0], ValueError),
        (torch.zeros(5, 1).t()[:, ::2].expand(1, 3), ValueError),
        (torch.empty(1, 0), ValueError),
    ):
        with pytest.raises(error):
            draw(wrong, params(1), [0.5])


def test_it_is_what_the_engine_gets(cpu_isa) -> None:
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        ops = resolve_ops("auto", torch.device("cpu"), dtype)
        assert ops.choices["draw_tokens"].backend == "cpu"
