"""The lengths planned are the best of all there are, by trying all."""

from __future__ import annotations

import itertools
import random

import numpy as np
import pytest

from infopt.speculative.planning import MARGIN, Scene, plan_lengths
from infopt.speculative.theory import expected_tokens, speedup

BATCH, LONGEST = 3, 3


def free(*_: object) -> float:
    return 0.0


def survival_of(rng: random.Random) -> np.ndarray:
    shares = [[rng.random() for _ in range(LONGEST)] for _ in range(BATCH)]
    return np.cumprod(np.array(shares), axis=1)


@pytest.mark.parametrize("seed", range(12))
def test_no_other_lengths_give_more_tokens_per_second(seed: int) -> None:
    rng = random.Random(seed)
    survival = survival_of(rng)
    limits = np.array([rng.randint(0, LONGEST) for _ in range(BATCH)])
    table = np.cumsum([1.0] + [rng.uniform(0, 0.15) for _ in range(BATCH * LONGEST)])
    scene = Scene(BATCH, BATCH, 1.0, 1.0 / BATCH)
    plan = plan_lengths(
        scene, survival, None, limits, step_s=table, draft_s=free, max_guesses=BATCH * LONGEST
    )

    def rate(lengths: tuple[int, ...]) -> float:
        tokens = BATCH + sum(survival[i, :n].sum() for i, n in enumerate(lengths))
        return tokens / table[sum(lengths)]

    best = max(rate(n) for n in itertools.product(*(range(m + 1) for m in limits)))
    if best < BATCH * (1 + MARGIN):
        assert not plan.lengths.any()
    else:
        assert rate(tuple(plan.lengths)) == pytest.approx(best)
        assert plan.speedup == pytest.approx(best / BATCH)
        assert plan.tokens / plan.seconds == pytest.approx(best)


def test_one_output_follows_the_formula() -> None:
    """With one alpha and one cost per guess the gain is Leviathan's."""
    alpha, cost = 0.7, 0.1
    survival = np.cumprod(np.full((1, 8), alpha), axis=1)
    plan = plan_lengths(
        Scene(1, 1, 2e-3, 2e-3),
        survival,
        np.ones((1, 8)),
        np.array([8]),
        step_s=np.full(9, 2e-3),
        draft_s=lambda outputs, longest: 2e-3 * cost * longest,
        max_guesses=8,
    )
    length = int(plan.lengths[0])
    assert length == 4
    assert plan.speedup == pytest.approx(speedup(alpha, length, cost))
    assert plan.tokens == pytest.approx(expected_tokens(alpha, length))


def test_guesses_that_may_not_come_count_by_their_chance() -> None:
    survival, given = np.full((1, 1), 0.8), np.full((1, 1), 0.25)
    plan = plan_lengths(
        Scene(1, 1, 1.0, 1.0),
        survival,
        given,
        np.array([1]),
        step_s=np.array([1.0, 1.4]),
        draft_s=lambda outputs, longest: 0.02 * outputs,
        max_guesses=1,
    )
    assert plan.tokens == pytest.approx(1.2)
    assert plan.seconds == pytest.approx(1.0 + 0.25 * 0.4 + 0.02)


def test_limits_hold() -> None:
    survival = np.full((2, 4), 0.9)
    scene = Scene(2, 2, 1.0, 0.5)
    table = np.ones(9)
    plan = plan_lengths(
        scene, survival, None, np.array([1, 0]), step_s=table, draft_s=free, max_guesses=8
    )
    assert plan.lengths.tolist() == [1, 0]
    plan = plan_lengths(
        scene, survival, None, np.array([4, 4]), step_s=table, draft_s=free, max_guesses=3
    )
    assert plan.lengths.sum() == 3
    plan = plan_lengths(
        scene, survival, None, np.array([0, 0]), step_s=table, draft_s=free, max_guesses=8
    )
    assert plan.lengths.tolist() == [0, 0]
    assert plan.speedup == 1.0


def test_beside_prompts_a_guess_is_worth_what_decoding_takes() -> None:
    """One output decodes beside 99 rows of a prompt; its token is worth 1 ms, a row takes 0.6."""
    survival = np.array([[0.7, 0.3]])
    plan = plan_lengths(
        Scene(100, 1, 60e-3, 1e-3),
        survival,
        None,
        np.array([2]),
        step_s=60e-3 + 0.6e-3 * np.arange(3),
        draft_s=free,
        max_guesses=2,
    )
    assert plan.lengths.tolist() == [1]
