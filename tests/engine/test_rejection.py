"""Drawn guesses: what comes out follows the model, and as many are kept as can be."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from infopt import SamplingParams
from infopt.engine.rejection import GUESS_STREAM, Guess, choose
from infopt.engine.sampler import SamplingRow, probabilities, process_logits, uniform
from infopt.ops.sampling import draw_tokens, pick
from infopt.speculative import theory

P, Q = [0.6, 0.3, 0.1], [0.2, 0.5, 0.3]
CHI_SQUARE = {1: 10.8, 2: 13.8, 3: 16.3, 4: 18.5, 5: 20.5, 6: 22.5, 7: 24.3, 8: 26.1}
"""Quantile 0.999 by degrees of freedom."""


def row(params: SamplingParams, seed: int, position: int = 0, counts: Any = None) -> SamplingRow:
    return SamplingRow(params, seed, position, [], counts or {}, ())


def logits_of(probabilities: list[float]) -> torch.Tensor:
    return torch.tensor([probabilities]).log()


def run(
    target: torch.Tensor, draft: torch.Tensor, params: SamplingParams, trials: int, **rows: Any
) -> tuple[torch.Tensor, float]:
    """Return the frequencies of what comes out, and the share of guesses kept."""
    all_rows = [row(params, seed, **rows) for seed in range(trials)]
    laws = probabilities(process_logits(draft, all_rows[:1]), all_rows[:1]).expand(trials, -1)
    guesses = pick(laws, [uniform(r.seed, r.num_output_tokens, GUESS_STREAM) for r in all_rows])
    given = [Guess(token, laws[0].float()) for token in guesses]
    chosen = choose(target.expand(trials, -1), all_rows, list(given), draw_tokens)
    kept = sum(one == other for one, other in zip(chosen, guesses, strict=True))
    return torch.bincount(torch.tensor(chosen), minlength=target.shape[1]).double(), kept / trials


def check_law(counts: torch.Tensor, law: torch.Tensor) -> None:
    """Assert that counts follow a law: nothing outside it, chi-square below its 0.1 % quantile."""
    expected = law / law.sum() * counts.sum()
    inside = expected > 0
    assert counts[~inside].sum() == 0
    if inside.sum() > 1:
        statistic = ((counts - expected)[inside] ** 2 / expected[inside]).sum()
        assert float(statistic) < CHI_SQUARE[int(inside.sum()) - 1]


@pytest.mark.parametrize(
    ("params", "p", "q", "acceptance"),
    [
        (SamplingParams(), P, Q, 0.6),
        (SamplingParams(), P, P, 1.0),
        # The guess comes from [0.5, 0.5, 0] here, and that is what it is judged by.
        (SamplingParams(top_k=2), [0.6, 0.3, 0.1], [0.4, 0.4, 0.2], 5 / 6),
        (SamplingParams(top_p=0.85), P, Q, None),
        (SamplingParams(temperature=0.5), P, Q, None),
        (SamplingParams(temperature=2.5, min_p=0.4), P, Q, None),
        (SamplingParams(logit_bias={2: 3.0}), P, Q, None),
        (SamplingParams(temperature=0.8, top_k=3, top_p=0.9), [0.3, 0.25, 0.2, 0.15, 0.1], None, 0),
    ],
)
def test_what_comes_out_follows_the_model(
    params: SamplingParams, p: list[float], q: list[float] | None, acceptance: float | None
) -> None:
    """Pins: acceptance by the raw draft distribution although the guess came from a filtered one,
    and guesses kept only if they equalled a draw of the model.
    """
    target, draft = logits_of(p), logits_of(q or [0.1, 0.1, 0.2, 0.3, 0.3])
    counts, kept = run(target, draft, params, 8000)
    laws = [
        probabilities(process_logits(x, [row(params, 0)]), [row(params, 0)])[0]
        for x in (target, draft)
    ]
    check_law(counts, laws[0])
    expected = theory.acceptance(*((law / law.sum()).tolist() for law in laws))
    if acceptance:
        assert expected == pytest.approx(acceptance, abs=1e-6)
    assert kept == pytest.approx(expected, abs=4 * math.sqrt(0.25 / 8000))
    assert kept == 1.0 or p != q


def test_a_guess_from_a_filtered_law_is_judged_by_it() -> None:
    """The figures of a known fault: the raw law would give [0.625, 0.375, 0] and 0.875."""
    trials, law = 8000, torch.tensor([0.5, 0.5, 0.0])
    rows = [row(SamplingParams(), seed) for seed in range(trials)]
    numbers = [uniform(r.seed, 0, GUESS_STREAM) for r in rows]
    tokens = pick(law.double().expand(trials, -1), numbers)
    chosen = choose(
        logits_of(P).expand(trials, -1), rows, [Guess(t, law) for t in tokens], draw_tokens
    )
    check_law(torch.bincount(torch.tensor(chosen), minlength=3).double(), torch.tensor(P).double())
    kept = sum(a == b for a, b in zip(chosen, tokens, strict=True)) / trials
    assert kept == pytest.approx(0.8, abs=0.02)


def test_equal_laws_keep_everything() -> None:
    """To the bit: the same logits and parameters give the same law on both sides."""
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(1, 300, generator=generator) * 3
    for params in (
        SamplingParams(),
        SamplingParams(temperature=0.3, top_p=0.9),
        SamplingParams(temperature=1.7, top_k=9, min_p=0.05),
        SamplingParams(presence_penalty=1.0, repetition_penalty=1.4),
    ):
        _, kept = run(logits, logits, params, 500, counts={3: 2, 8: 1})
        assert kept == 1.0


def test_greedy_rows_and_rows_without_a_guess_are_sampled_as_ever() -> None:
    generator = torch.Generator().manual_seed(1)
    logits = torch.randn(6, 40, generator=generator)
    law = torch.ones(40)
    rows = [
        row(SamplingParams(temperature=0 if i % 3 == 0 else 1.0), seed=i, position=i)
        for i in range(6)
    ]
    guesses = [Guess(7, law) if i in (0, 4) else None for i in range(6)]
    chosen = choose(logits, rows, list(guesses), draw_tokens)
    plain = choose(logits, rows, [None] * 6, draw_tokens)
    assert [c for i, c in enumerate(chosen) if i != 4] == [c for i, c in enumerate(plain) if i != 4]


def test_a_row_depends_on_its_own_numbers_alone() -> None:
    generator = torch.Generator().manual_seed(2)
    logits, laws = (torch.randn(16, 50, generator=generator) for _ in range(2))
    rows = [row(SamplingParams(temperature=1.2), seed=i, position=3 * i) for i in range(16)]
    guesses: list[Guess | None] = [Guess(i % 5, laws[i].softmax(-1)) for i in range(16)]
    together = choose(logits, rows, guesses, draw_tokens)
    alone = [
        choose(logits[i : i + 1], rows[i : i + 1], guesses[i : i + 1], draw_tokens)[0]
        for i in range(16)
    ]
    assert together == alone


@pytest.mark.parametrize("target", [[float("nan")] * 4, [float("-inf")] * 4])
def test_rows_that_allow_nothing_give_token_0(target: list[float]) -> None:
    """The same as without a guess."""
    rows = [row(SamplingParams(), 1)]
    logits = torch.tensor([target])
    guess = Guess(2, torch.tensor([0.1, 0.2, 0.4, 0.3]))
    assert choose(logits, rows, [guess], draw_tokens) == [0]
    assert choose(logits, rows, [None], draw_tokens) == [0]


def test_numbers_of_streams_are_independent_and_the_unnamed_is_as_it_was() -> None:
    assert uniform(5, 7) == pytest.approx(0.5, abs=0.5)
    names = (b"", b"guess", b"keep")
    draws = torch.tensor([[uniform(1, i, name) for i in range(4000)] for name in names])
    correlation = torch.corrcoef(draws) - torch.eye(3)
    assert correlation.abs().max() < 0.05
    assert (draws.mean(dim=1) - 0.5).abs().max() < 0.02
