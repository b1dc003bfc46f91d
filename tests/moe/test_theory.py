"""Formulas of mixtures: published models, drawn tokens, and what must hold for any numbers."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from infopt.errors import ConfigError
from infopt.models.config import MoeConfig
from infopt.moe.theory import (
    MoeSize,
    distinct_experts,
    imbalance,
    jain_index,
    load_entropy,
    most_distinct_experts,
    time_ratio,
)

CHOICES = st.integers(1, 128).flatmap(
    lambda num: st.tuples(st.just(num), st.integers(1, num), st.integers(0, 512))
)
LOADS = st.lists(st.integers(0, 1000), min_size=1, max_size=64).filter(any)


@pytest.mark.parametrize(
    ("num_experts", "top_k", "by_rows"),
    [
        (8, 2, {1: 2, 2: 3.5, 4: 5.47, 8: 7.2, 16: 7.92}),
        (64, 8, {1: 8, 2: 15, 4: 26.48, 8: 42.01, 16: 56.44, 32: 63.11}),
    ],
)
def test_distinct_experts_are_the_published_ones(num_experts, top_k, by_rows):
    for rows, expected in by_rows.items():
        assert distinct_experts(num_experts, top_k, rows) == pytest.approx(expected, abs=0.005)


@pytest.mark.parametrize(("num_experts", "top_k", "rows"), [(8, 2, 3), (32, 4, 8), (16, 1, 16)])
def test_even_draws_touch_what_the_formula_says(num_experts, top_k, rows):
    draw, num_steps = np.random.default_rng(0), 4000
    keys = draw.random((num_steps, rows, num_experts)).argsort(axis=-1)[..., :top_k]
    counts = [len(np.unique(step)) for step in keys]
    error = 4 * np.std(counts) / math.sqrt(num_steps)
    assert np.mean(counts) == pytest.approx(distinct_experts(num_experts, top_k, rows), abs=error)
    assert max(counts) <= most_distinct_experts(num_experts, top_k, rows)


@given(CHOICES)
def test_distinct_experts_keep_their_bounds_and_agree_with_the_model_config(choice):
    num_experts, top_k, rows = choice
    found = distinct_experts(num_experts, top_k, rows)
    assert 0 <= found <= most_distinct_experts(num_experts, top_k, rows) + 1e-9
    assert found <= distinct_experts(num_experts, top_k, rows + 1) + 1e-12
    config = MoeConfig(num_experts, top_k, intermediate_size=1, is_sparse=(True,))
    assert found == pytest.approx(config.distinct_experts(rows))


def test_mixtral_has_its_published_weights():
    """46.7 B in all, 12.9 B for one token (arXiv 2401.04088)."""
    attention = 32 * (2 * 4096 * 4096 + 2 * 4096 * 1024)
    embeddings = 2 * 32000 * 4096
    size = MoeSize(
        shared=attention + embeddings + 32 * 8 * 4096 + 65 * 4096,
        expert=3 * 4096 * 14336,
        num_layers=32,
        num_experts=8,
        top_k=2,
    )
    assert size.total / 1e9 == pytest.approx(46.7, abs=0.05)
    assert size.active / 1e9 == pytest.approx(12.9, abs=0.05)
    assert size.read(1) == pytest.approx(size.active)
    assert size.read(1000) == pytest.approx(size.total)


EQUAL = MoeSize(shared=40.0, expert=10.0, num_layers=2, num_experts=8, top_k=2)


def test_equal_active_weights_cost_the_same_at_both_ends_and_more_between():
    dense, ridge = EQUAL.active, 64.0
    ratios = {n: time_ratio(EQUAL, dense, n, ridge_tokens=ridge) for n in (1, 2, 8, 64, 1024)}
    assert ratios[1] == pytest.approx(1)
    assert ratios[2] == pytest.approx((40 + 2 * 3.5 * 10) / 80)
    assert ratios[8] > ratios[2]
    assert ratios[1024] == pytest.approx(1)
    assert time_ratio(EQUAL, dense, 1024) == pytest.approx(EQUAL.total / dense)


def test_against_a_dense_model_of_the_same_size_the_advantage_is_largest_at_one_token():
    ratios = [time_ratio(EQUAL, EQUAL.total, n) for n in range(1, 40)]
    assert ratios[0] == pytest.approx(EQUAL.active / EQUAL.total)
    assert ratios == sorted(ratios)
    assert ratios[-1] == pytest.approx(1, abs=1e-3)


def test_load_measures_at_their_ends():
    assert jain_index([5, 5, 5, 5]) == 1
    assert load_entropy([5, 5, 5, 5]) == pytest.approx(1)
    assert imbalance([5, 5, 5, 5]) == 1
    assert jain_index([7, 0, 0, 0]) == 0.25
    assert load_entropy([7, 0, 0, 0]) == 0
    assert imbalance([7, 0, 0, 0]) == 4
    assert jain_index([1, 3]) == pytest.approx(16 / 20)
    assert load_entropy([1, 3]) == pytest.approx(0.8113, abs=1e-4)  # bits
    assert load_entropy([9]) == 1


@given(LOADS, st.integers(1, 50))
def test_load_measures_keep_their_ranges_and_know_no_unit(loads, factor):
    many = [factor * load for load in loads]
    assert 1 / len(loads) - 1e-12 <= jain_index(loads) <= 1 + 1e-12
    assert 0 <= load_entropy(loads) <= 1
    assert 1 - 1e-12 <= imbalance(loads) <= len(loads)
    for measure in (jain_index, load_entropy, imbalance):
        assert measure(many) == pytest.approx(measure(loads))
        assert measure(loads[::-1]) == pytest.approx(measure(loads))


@pytest.mark.parametrize("loads", [[], [0, 0], [1, -1], [-1]])
def test_loads_of_nothing_are_refused(loads):
    for measure in (jain_index, load_entropy, imbalance):
        with pytest.raises(ConfigError, match="Loads must be"):
            measure(loads)


@pytest.mark.parametrize(("num_experts", "top_k"), [(8, 0), (8, 9), (0, 0)])
def test_impossible_choices_are_refused(num_experts, top_k):
    with pytest.raises(ConfigError, match="top_k must be between 1 and"):
        distinct_experts(num_experts, top_k, 1)
    with pytest.raises(ConfigError, match="top_k"):
        MoeSize(1.0, 1.0, 1, num_experts, top_k)


def test_impossible_sizes_are_refused():
    with pytest.raises(ConfigError, match="num_rows must be >= 0, got -1"):
        distinct_experts(8, 2, -1)
    with pytest.raises(ConfigError, match="expert must be >= 0"):
        MoeSize(1.0, -1.0, 1, 8, 2)
    with pytest.raises(ConfigError, match="dense must be > 0"):
        time_ratio(EQUAL, 0.0, 1)
    with pytest.raises(ConfigError, match="ridge_tokens must be > 0"):
        time_ratio(EQUAL, 1.0, 1, ridge_tokens=0.0)
