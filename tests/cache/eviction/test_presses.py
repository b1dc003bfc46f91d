"""Scores against their formulas, written out row by row in float64."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch

from infopt.cache.eviction import LayerRows, read_eviction
from infopt.cache.eviction.attention import AttentionSums, attention_weights
from infopt.cache.eviction.select import select_rows

HEADS, KV_HEADS, SIZE, SCALE = 6, 2, 8, 0.3
SHARE = HEADS // KV_HEADS


def press_of(method: str, **options: Any) -> Any:
    config = read_eviction({"method": method, "budget": 0.5, **options})
    assert config is not None
    return config.press


def random_tensor(*shape: int, seed: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


@pytest.fixture
def rows_of() -> Callable[..., LayerRows]:
    """Factory of a random layer with ``num_rows`` rows and ``num_queries`` newest queries."""

    def make(num_rows: int = 23, num_queries: int = 23, **changes: Any) -> LayerRows:
        angles = torch.arange(4096)[:, None] * 0.7 ** torch.arange(SIZE // 2)
        at = torch.arange(num_rows - num_queries, num_rows)
        values: dict[str, Any] = {
            "layer": 3,
            "num_kept": num_rows // 2,
            "keys": random_tensor(KV_HEADS, num_rows, SIZE, seed=1),
            "values": random_tensor(KV_HEADS, num_rows, SIZE, seed=2),
            "positions": torch.arange(num_rows).expand(KV_HEADS, -1),
            "queries": random_tensor(HEADS, num_queries, SIZE, seed=3),
            "query_rows": at,
            "query_positions": at,
            "attention": None,
            "scale": SCALE,
            "softcap": None,
            "next_position": num_rows,
            "cos": angles.cos(),
            "sin": angles.sin(),
        }
        return LayerRows(**(values | changes))

    return make


def brute_weights(rows: LayerRows, softcap: float | None = None) -> list[list[list[float]]]:
    """Attention probabilities by head, query and row, in Python's own floats."""
    out = []
    for head in range(HEADS):
        keys, per_query = rows.keys[head // SHARE].tolist(), []
        for query, own in zip(rows.queries[head].tolist(), rows.query_rows.tolist(), strict=True):
            scores = [SCALE * sum(a * b for a, b in zip(query, k, strict=True)) for k in keys]
            if softcap:
                scores = [softcap * math.tanh(s / softcap) for s in scores]
            weights = [math.exp(s) if at <= own else 0.0 for at, s in enumerate(scores)]
            per_query.append([w / sum(weights) for w in weights])
        out.append(per_query)
    return out


def close(found: torch.Tensor, expected: list[list[float]]) -> None:
    torch.testing.assert_close(
        found.double(), torch.tensor(expected).double(), atol=1e-6, rtol=1e-5
    )


@pytest.mark.parametrize("softcap", [None, 0.8])
def test_attention_is_a_causal_softmax(rows_of: Any, softcap: float | None) -> None:
    rows = rows_of(num_queries=5)
    found = attention_weights(rows.queries, rows.query_rows, rows.keys, SCALE, softcap)
    torch.testing.assert_close(
        found.double(),
        torch.tensor(brute_weights(rows, softcap)).double(),
        atol=1e-6,
        rtol=1e-5,
    )


def test_knorm(rows_of: Any) -> None:
    rows = rows_of()
    expected = [
        [-math.sqrt(sum(x * x for x in key)) for key in head] for head in rows.keys.tolist()
    ]
    close(press_of("knorm").score(rows), expected)


@pytest.mark.parametrize("sinks", [0, 1, 4])
def test_streaming_keeps_the_first_and_the_newest(rows_of: Any, sinks: int) -> None:
    kept = select_rows(press_of("streaming", sinks=sinks).score(rows_of(20)), 9)
    assert kept.tolist() == [[*range(sinks), *range(20 - 9 + sinks, 20)]] * KV_HEADS


def test_streaming_goes_by_position_where_rows_are_gone(rows_of: Any) -> None:
    """Rows of positions 0, 1, 9 and on: position 4 is gone, so 9 is no sink."""
    positions = torch.tensor([[0, 1, 9, 10, 11, 12]]).expand(KV_HEADS, -1)
    rows = rows_of(6, positions=positions)
    kept = select_rows(press_of("streaming", sinks=4).score(rows), 4)
    assert kept.tolist() == [[0, 1, 4, 5]] * KV_HEADS


def test_random_is_seeded_and_differs_by_layer_head_and_seed(rows_of: Any) -> None:
    press, rows = press_of("random", seed=5), rows_of()
    scores = press.score(rows)
    assert torch.equal(scores, press.score(rows))
    assert not torch.equal(scores[0], scores[1])
    assert not torch.equal(scores, press.score(rows_of(layer=4)))
    assert not torch.equal(scores, press_of("random", seed=6).score(rows))


def test_tova(rows_of: Any) -> None:
    rows = rows_of(num_queries=1)
    weights = brute_weights(rows)
    mean = [sum(weights[h][0][r] for h in range(HEADS)) / HEADS for r in range(rows.num_rows)]
    scores = press_of("tova").score(rows)
    close(scores[:, :-1], [mean[:-1]] * KV_HEADS)
    assert torch.all(scores[:, -1].isinf())


@pytest.mark.parametrize(("window", "kernel"), [(4, 5), (7, 1), (1, 3)])
def test_snapkv(rows_of: Any, window: int, kernel: int) -> None:
    rows = rows_of(num_queries=window)
    weights, before = brute_weights(rows), rows.num_rows - window
    votes = [
        [sum(weights[h][q][r] for q in range(window)) / window for r in range(before)]
        for h in range(HEADS)
    ]
    half = kernel // 2
    smooth = [
        [sum(v[max(r - half, 0) : r + half + 1]) / kernel for r in range(before)] for v in votes
    ]
    expected = [
        [sum(smooth[g * SHARE + i][r] for i in range(SHARE)) / SHARE for r in range(before)]
        for g in range(KV_HEADS)
    ]
    scores = press_of("snapkv", window=window, kernel=kernel).score(rows)
    close(scores[:, :before], expected)
    assert torch.all(scores[:, before:].isinf())


def test_attention_sums_are_means_over_the_queries_that_saw_a_row(rows_of: Any) -> None:
    rows = rows_of()
    weights = brute_weights(rows)
    expected = [
        [
            sum(weights[g * SHARE + i][q][r] for i in range(SHARE) for q in range(r, rows.num_rows))
            / SHARE
            / (rows.num_rows - r)
            for r in range(rows.num_rows)
        ]
        for g in range(KV_HEADS)
    ]
    sums = AttentionSums(1, KV_HEADS, torch.device("cpu"))
    for start, end in ((0, 5), (5, 6), (6, 23)):
        part = rows.queries[None, :, start:end]
        sums.add(part, torch.arange(start, end), rows.keys[None, :, :end], SCALE, None)
    close(sums.mean(0), expected)


def test_h2o_keeps_a_late_row_that_gets_all_attention(rows_of: Any) -> None:
    """A plain sum would keep rows because they are old."""
    num_rows, late = 60, 40
    keys = torch.zeros(KV_HEADS, num_rows, SIZE)
    keys[:, late, 0] = 60.0
    queries = torch.zeros(HEADS, num_rows, SIZE)
    queries[..., 0] = 1.0
    sums = AttentionSums(1, KV_HEADS, torch.device("cpu"))
    sums.add(queries[None], torch.arange(num_rows), keys[None], SCALE, None)
    total = sums.sums[0, 0]
    assert total[0] > total[late - 1] > 0
    rows = rows_of(num_rows, keys=keys, attention=sums.mean(0), num_kept=4)
    kept = select_rows(press_of("h2o").score(rows), 4)
    assert kept.tolist() == [[0, late, 58, 59]] * KV_HEADS


def test_h2o_sums_follow_their_rows() -> None:
    sums = AttentionSums(2, KV_HEADS, torch.device("cpu"))
    sums.sums = torch.arange(2 * KV_HEADS * 4.0).view(2, KV_HEADS, 4)
    sums.seen = torch.ones(2, KV_HEADS, 4)
    sums.keep(torch.tensor([[[0, 2], [1, 3]], [[2, 3], [0, 1]]]))
    assert sums.sums.tolist() == [[[0, 2], [5, 7]], [[10, 11], [12, 13]]]


@pytest.mark.parametrize("covariance", [True, False])
@pytest.mark.parametrize("value_norm", [True, False])
def test_expected_attention(rows_of: Any, covariance: bool, value_norm: bool) -> None:
    """Against a mean over each rotation, with the Gaussian's moments taken one by one."""
    sinks, future = 3, 11
    rows = rows_of()
    press = press_of(
        "expected_attention",
        sinks=sinks,
        future=future,
        covariance=covariance,
        value_norm=value_norm,
    )
    scores = press.score(rows)
    assert torch.all(scores[:, :sinks].isinf())
    rate = (0.7 ** torch.arange(SIZE // 2)).double()

    def turn(x: torch.Tensor, position: int) -> torch.Tensor:
        a, b = x[: SIZE // 2], x[SIZE // 2 :]
        c, s = (position * rate).cos(), (position * rate).sin()
        return torch.cat((a * c - b * s, b * c + a * s))

    turns = torch.stack(
        [
            torch.stack([turn(unit, rows.num_rows + i) for unit in torch.eye(SIZE).double()]).T
            for i in range(future)
        ]
    ).mean(0)
    expected = torch.zeros(KV_HEADS, rows.num_rows - sinks).double()
    for head in range(HEADS):
        queries = rows.queries[head].double()
        plain = [turn(queries[at], -at) for at in range(sinks, rows.num_rows)]
        mean = sum(plain) / len(plain)
        spread = sum(torch.outer(p - mean, p - mean) for p in plain) / len(plain)
        mean, spread = turns @ mean, turns @ spread @ turns.T
        keys = rows.keys[head // SHARE, sinks:].double()
        logits = torch.stack(
            [SCALE * mean @ k + (SCALE**2 / 2 * k @ spread @ k if covariance else 0) for k in keys]
        )
        expected[head // SHARE] += logits.softmax(0) / SHARE
    if value_norm:
        expected *= rows.values[:, sinks:].double().norm(dim=-1)
    torch.testing.assert_close(scores[:, sinks:].double(), expected, atol=2e-6, rtol=1e-4)


def test_expected_attention_is_the_mean_over_drawn_queries(rows_of: Any) -> None:
    """The closed form is E[exp(q k s)]: draws of q agree with it."""
    rows = rows_of(num_rows=40, num_queries=40)
    press = press_of("expected_attention", sinks=0, value_norm=False)
    mean, spread = press._future_queries(rows)
    draws = torch.distributions.MultivariateNormal(
        mean[0].double(), spread[0].double() + 1e-9 * torch.eye(SIZE)
    )
    torch.manual_seed(0)
    weights = (draws.sample((200_000,)) @ rows.keys[0].double().T * SCALE).exp().mean(0)
    form = rows.keys[0] @ mean[0] * SCALE
    form += ((rows.keys[0] @ spread[0]) * rows.keys[0]).sum(-1) * SCALE**2 / 2
    torch.testing.assert_close(form.double().exp(), weights, rtol=0.05, atol=0)


def test_a_pyramid_scores_as_its_base(rows_of: Any) -> None:
    rows = rows_of(num_queries=4)
    base = {"window": 4, "kernel": 3}
    pyramid = press_of("pyramid", base="snapkv", base_options=base)
    assert torch.equal(pyramid.score(rows), press_of("snapkv", **base).score(rows))
    assert pyramid.query_window == 4 and pyramid.min_rows == 4 and not pyramid.accumulates
