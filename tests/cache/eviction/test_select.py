"""Which rows stay: the highest scores, ties at the lower row, protected ones always."""

from __future__ import annotations

import random

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from infopt.cache.eviction.select import protect, select_rows


@given(
    scores=st.lists(
        st.lists(st.sampled_from([-1.0, 0.0, 0.5, 2.0, float("inf")]), min_size=9, max_size=9),
        min_size=1,
        max_size=3,
    ),
    num_kept=st.integers(1, 9),
)
@settings(max_examples=60, deadline=None)
def test_selection_is_a_sort_by_score_then_row(scores: list[list[float]], num_kept: int) -> None:
    kept = select_rows(torch.tensor(scores), num_kept)
    for head, row in zip(scores, kept.tolist(), strict=True):
        expected = sorted(range(9), key=lambda at: (-head[at], at))[:num_kept]
        assert row == sorted(expected)


def test_many_ties_keep_the_first_rows() -> None:
    assert select_rows(torch.zeros(2, 5000), 3000).tolist() == [list(range(3000))] * 2


@pytest.mark.parametrize("spans", [[], [(0, 2)], [(3, 5), (7, 8)]])
def test_protected_positions_win_in_every_head(spans: list[tuple[int, int]]) -> None:
    rng = random.Random(1)
    positions = torch.tensor([sorted(rng.sample(range(12), 8)) for _ in range(2)])
    scores = torch.randn(2, 8, generator=torch.Generator().manual_seed(0))
    kept = select_rows(protect(scores, positions, spans), 4)
    for head in range(2):
        there = {p for p in positions[head].tolist() if any(a <= p < b for a, b in spans)}
        chosen = set(positions[head][kept[head]].tolist())
        assert len(chosen) == 4
        assert there <= chosen or len(there) > 4
