"""Statistics of experts from counts that were made by hand."""

from __future__ import annotations

import json
import math

import pytest
import torch

from infopt.engine.expert_counts import DistinctCounts, ExpertCounts
from infopt.models.config import MoeConfig
from infopt.moe.statistics import describe_experts, expert_statistics


def counts_of(num_experts: int = 4, top_k: int = 2) -> ExpertCounts:
    """Counts of a model whose second and third of three layers have experts."""
    return ExpertCounts(MoeConfig(num_experts, top_k, 8, is_sparse=(False, True, True)))


def test_loads_are_judged_layer_by_layer() -> None:
    counts = counts_of()
    counts.num_tokens = [5, 3]
    counts.load[0] = torch.tensor([[4, 2, 2, 2], [5, 5, 0, 0]])
    counts.load[1] = torch.tensor([[0, 2, 2, 2], [3, 3, 0, 0]])
    stats = expert_statistics(counts)
    assert stats is not None
    even, half = stats.layers
    assert (even.layer, half.layer) == (1, 2)
    assert (even.load, even.decode_load) == ([4, 4, 4, 4], [0, 2, 2, 2])
    assert (even.jain, even.imbalance, even.entropy) == pytest.approx((1, 1, 1))
    assert (half.jain, half.imbalance) == pytest.approx((0.5, 2))
    assert half.entropy == pytest.approx(math.log(2) / math.log(4))
    assert (stats.prefill_tokens, stats.decode_tokens) == (5, 3)


def test_distinct_experts_stand_beside_formula_and_bound() -> None:
    """E=8, k=2: 2 experts for one row, 3.5 expected for two, 5.47 for four."""
    counts = counts_of(8)
    counts.distinct[1][4] = DistinctCounts(num_steps=3, total=30, most=7)
    counts.distinct[1][1] = DistinctCounts(num_steps=10, total=40, most=2)
    counts.distinct[0][2] = DistinctCounts(num_steps=1, total=5, most=3)
    stats = expert_statistics(counts)
    assert stats is not None
    found = [(e.rows, e.steps, e.mean, e.most, e.bound) for e in stats.distinct_by_rows]
    assert found == [(1, 10, 2.0, 2, 2), (4, 3, 5.0, 7, 8)]
    assert [e.formula for e in stats.distinct_by_rows] == pytest.approx([2, 5.46875])
    (prefill,) = stats.distinct_by_rows_prefill
    assert (prefill.rows, prefill.mean, prefill.formula) == (2, 2.5, 3.5)


def test_locality_stands_beside_chance() -> None:
    counts = counts_of()
    counts.num_pairs = 10
    counts.first = torch.tensor([[10, 0, 0, 0], [5, 5, 0, 0]])
    counts.same_first = torch.tensor([10, 4])
    counts.repeated = torch.tensor([20, 10])
    stats = expert_statistics(counts)
    assert stats is not None
    locality = stats.locality
    assert locality.same_first == pytest.approx((1 + 0.4) / 2)
    assert locality.chance == 0.25
    assert locality.chance_by_load == pytest.approx((1 + 0.5) / 2)
    assert (locality.overlap, locality.overlap_chance) == pytest.approx((0.75, 0.5))
    assert [layer.same_first for layer in stats.layers] == pytest.approx([1, 0.4])


def test_before_the_first_token_shares_are_unknown_not_zero() -> None:
    described = describe_experts(counts_of())
    assert described is not None
    assert described["locality"]["same_first"] is None
    assert described["locality"]["chance_by_load"] is None
    assert described["layers"][0] == {
        "layer": 1,
        "load": [0, 0, 0, 0],
        "decode_load": [0, 0, 0, 0],
        "jain": None,
        "imbalance": None,
        "entropy": None,
        "same_first": None,
    }
    assert described["distinct_by_rows"] == described["distinct_by_rows_prefill"] == []
    json.dumps(described, allow_nan=False)


def test_nothing_counted_is_nothing_described() -> None:
    assert describe_experts(None) is None
