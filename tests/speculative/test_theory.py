"""The formulas of speculative decoding against published and hand-computed values."""

from __future__ import annotations

import math
import random

import pytest

from infopt.errors import ConfigError
from infopt.speculative.theory import (
    acceptance,
    best_length,
    expected_kept,
    expected_tokens,
    operations_factor,
    output_law,
    pays,
    residual,
    speedup,
)


@pytest.mark.parametrize(
    ("alpha", "length", "tokens"),
    [(0.6, 3, 2.176), (0.7, 4, 2.7731), (0.8, 4, 3.3616), (0.8, 5, 3.6893), (0.9, 5, 4.6856)],
)
def test_tokens_per_pass(alpha: float, length: int, tokens: float) -> None:
    assert expected_tokens(alpha, length) == pytest.approx(tokens, abs=5e-5)
    closed = (1 - alpha ** (length + 1)) / (1 - alpha)
    assert expected_tokens(alpha, length) == pytest.approx(closed, rel=1e-12)
    kept = alpha * (1 - alpha**length) / (1 - alpha)
    assert expected_kept(alpha, length) == pytest.approx(kept, rel=1e-12)


@pytest.mark.parametrize(
    ("alpha", "length", "cost", "gain"),
    [
        (0.6, 3, 0.05, 1.892),
        (0.7, 4, 0.1, 1.981),
        (0.8, 4, 0.1, 2.401),
        (0.8, 5, 0.05, 2.951),
        (0.9, 5, 0.1, 3.124),
    ],
)
def test_speedup(alpha: float, length: int, cost: float, gain: float) -> None:
    assert speedup(alpha, length, cost) == pytest.approx(gain, abs=6e-4)
    assert speedup(alpha, length, cost, verify_cost=2.0) < speedup(alpha, length, cost)


def test_limits() -> None:
    for length in range(9):
        assert expected_tokens(1.0, length) == length + 1
        assert expected_tokens(0.0, length) == 1.0
    assert expected_tokens(1.0 - 1e-15, 5) == pytest.approx(6.0)
    assert speedup(0.9, 0, 0.5) == 1.0
    assert operations_factor(1.0, 3, 0.0) == 1.0
    assert operations_factor(0.0, 3, 0.0) == 4.0


def test_operations_are_never_saved() -> None:
    alpha, length, cost = 0.8, 4, 0.1
    expected = (1 - alpha) * (length * cost + length + 1) / (1 - alpha ** (length + 1))
    assert operations_factor(alpha, length, cost) == pytest.approx(expected)
    assert expected > 1


def test_one_guess_pays_exactly_above_its_cost() -> None:
    for alpha in (0.0, 0.05, 0.3, 0.31, 0.9):
        for cost in (0.0, 0.05, 0.3, 1.2):
            assert pays(alpha, cost) == (speedup(alpha, 1, cost) > 1.0)
            assert (best_length(alpha, cost, 8) > 0) == pays(alpha, cost)


def test_the_best_length_is_the_best() -> None:
    gains = [speedup(0.7, length, 0.1) for length in range(17)]
    assert best_length(0.7, 0.1, 16) == gains.index(max(gains)) == 4
    assert best_length(0.2, 0.5, 16) == 0
    assert best_length(1.0, 0.0, 7) == 7


@pytest.mark.parametrize(
    ("target", "draft", "rate"),
    [
        # The draft that filters must be judged by what it drew from, not by its raw distribution.
        ([0.6, 0.3, 0.1], [0.5, 0.5, 0.0], 0.8),
        ([0.6, 0.3, 0.1], [0.2, 0.5, 0.3], 0.6),
        ([0.6, 0.3, 0.1], [0.0, 1.0, 0.0], 0.3),
        ([0.6, 0.3, 0.1], [0.6, 0.3, 0.1], 1.0),
    ],
)
def test_the_output_follows_the_target(target, draft, rate: float) -> None:
    assert acceptance(target, draft) == pytest.approx(rate)
    assert output_law(target, draft) == pytest.approx(target)
    assert math.fsum(residual(target, draft)) == pytest.approx(1.0)


def test_the_output_follows_any_target() -> None:
    rng = random.Random(5)
    for _ in range(200):
        laws = [[rng.random() ** 3 for _ in range(6)] for _ in range(2)]
        target, draft = ([x / sum(law) for x in law] for law in laws)
        assert output_law(target, draft) == pytest.approx(target)
        distance = sum(abs(p - q) for p, q in zip(target, draft, strict=True)) / 2
        assert acceptance(target, draft) == pytest.approx(1 - distance)


@pytest.mark.parametrize(
    ("call", "field"),
    [
        (lambda: expected_tokens(1.1, 3), "alpha"),
        (lambda: expected_tokens(float("nan"), 3), "alpha"),
        (lambda: expected_tokens(0.5, -1), "length"),
        (lambda: speedup(0.5, 3, -0.1), "cost"),
        (lambda: speedup(0.5, 3, 0.1, float("inf")), "verify_cost"),
        (lambda: operations_factor(0.5, 3, -1), "cost"),
        (lambda: pays(-0.5, 0.1), "alpha"),
    ],
)
def test_impossible_values_are_refused(call, field: str) -> None:
    with pytest.raises(ConfigError) as caught:
        call()
    assert caught.value.field == field
