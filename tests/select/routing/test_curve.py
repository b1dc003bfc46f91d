"""PGR, APGR, CPT and costs against the definitions, computed the slow way."""

from __future__ import annotations

import itertools
import random

import numpy as np
import pytest

from infopt.errors import ConfigError, MeasurementError
from infopt.select.routing import (
    CascadePolicy,
    Confidence,
    LengthPolicy,
    RandomPolicy,
    routing_curve,
    threshold_for,
)
from infopt.select.routing.curve import SHARES, share_for
from infopt.select.routing.items import needs_of

LENGTH = LengthPolicy(cheap="small", strong="large", threshold=1)
CASCADE = CascadePolicy(cheap="small", strong="large", threshold=1)


def with_needs(make_item, rows):
    """Items of (weak, strong, need); the need is the length of the prompt."""
    return [
        make_item(str(i), weak, strong, prompt="x" * need)
        for i, (weak, strong, need) in enumerate(rows)
    ]


def brute_force(rows):
    """Mean quality after each count of strong calls, over all orders of equal needs."""
    orders = [
        order
        for order in itertools.permutations(range(len(rows)))
        if all(rows[a][2] >= rows[b][2] for a, b in itertools.pairwise(order))
    ]
    curve = np.zeros(len(rows) + 1)
    for order in orders:
        for count in range(len(rows) + 1):
            values = [rows[i][1] for i in order[:count]] + [rows[i][0] for i in order[count:]]
            curve[count] += np.mean(values) / len(orders)
    return curve


@pytest.mark.parametrize("seed", range(6))
def test_the_curve_is_the_mean_over_all_orders(make_item, seed):
    rng = random.Random(seed)
    rows = [(rng.choice((0.0, 1.0)), rng.random(), rng.randrange(3)) for _ in range(6)]
    rows.append((0.0, 1.0, 1))
    curve = routing_curve(LENGTH, with_needs(make_item, rows))
    slow = brute_force(rows)
    counts = np.arange(len(slow)) / (len(slow) - 1)
    fast = [point.quality for point in curve.points]
    assert fast == pytest.approx(np.interp(SHARES, counts, slow), abs=1e-12)
    weak, strong = slow[0], slow[-1]
    area = np.trapezoid(slow, counts)
    assert curve.lift == pytest.approx(area - (weak + strong) / 2)
    if strong > weak:
        assert curve.apgr == pytest.approx((area - weak) / (strong - weak))
        assert curve.points[7].pgr == pytest.approx((fast[7] - weak) / (strong - weak))


def test_a_policy_that_knows_nothing_has_apgr_one_half(make_item):
    rows = [(0.0, 1.0, 5), (1.0, 1.0, 5), (1.0, 0.0, 5), (0.0, 1.0, 5)]
    curve = routing_curve(LENGTH, with_needs(make_item, rows))
    assert curve.apgr == pytest.approx(0.5)
    assert curve.lift == pytest.approx(0)
    assert curve.verdict == "undecided"
    assert curve.cpt == {0.5: pytest.approx(0.5), 0.8: pytest.approx(0.8)}


@pytest.mark.parametrize("seed", range(5))
def test_a_random_router_has_one_half_within_its_interval(make_items, seed):
    policy = RandomPolicy(cheap="small", strong="large", seed=seed)
    curve = routing_curve(policy, make_items(400, seed))
    assert curve.apgr_interval.low <= 0.5 <= curve.apgr_interval.high
    assert curve.verdict == "undecided"


def test_the_interval_covers_one_half_as_often_as_it_says(make_items):
    """Of 100 random routers, 95 +- 6 have 0.5 inside; a bootstrap that forgot pairs would not."""
    items = make_items(150)
    inside = 0
    for seed in range(100):
        policy = RandomPolicy(cheap="small", strong="large", seed=seed)
        low, high = routing_curve(policy, items, seed=seed).lift_interval
        inside += low <= 0 <= high
    assert 88 <= inside <= 100


def test_a_perfect_router(make_item):
    """Two of four items gain: the curve rises to the top at half of the calls."""
    rows = [(0.0, 1.0, 9), (0.0, 1.0, 9), (1.0, 1.0, 1), (0.0, 0.0, 1)]
    curve = routing_curve(LENGTH, with_needs(make_item, rows))
    assert curve.apgr == pytest.approx(0.75)
    assert curve.cpt[0.5] == pytest.approx(0.25)
    assert curve.cpt[0.8] == pytest.approx(0.4)
    assert curve.points[10].pgr == pytest.approx(1.0)


def test_cpt_is_the_first_crossing(make_item):
    """A curve may leap above the strong model's quality and fall back."""
    rows = [(0.0, 1.0, 9), (0.0, 1.0, 8), (1.0, 0.0, 7), (0.0, 1.0, 6)]
    curve = routing_curve(LENGTH, with_needs(make_item, rows))
    assert curve.points[10].pgr == pytest.approx(1.0)
    assert curve.cpt[0.8] == pytest.approx(0.4)


def test_without_a_gap_ratios_are_absent_and_the_lift_is_not(make_item):
    rows = [(0.0, 1.0, 9), (1.0, 0.0, 1)] * 20
    curve = routing_curve(LENGTH, with_needs(make_item, rows))
    assert curve.apgr is None
    assert curve.apgr_interval is None
    assert set(curve.cpt.values()) == {None}
    assert {point.pgr for point in curve.points} == {None}
    assert curve.lift == pytest.approx(0.25)
    assert curve.verdict == "better"
    needs, weak, strong = np.array(rows).T[[2, 0, 1]]
    assert share_for(needs, weak, strong, 0.5) is None


def test_a_gap_in_doubt_leaves_apgr_without_interval(make_item):
    rows = [(0.0, 1.0, 9), (1.0, 0.0, 1)] * 10 + [(0.0, 1.0, 5)]
    curve = routing_curve(LENGTH, with_needs(make_item, rows))
    assert curve.apgr is not None
    assert curve.apgr_interval is None


def test_a_policy_that_is_wrong_is_called_worse(make_item):
    rows = [(0.0, 1.0, 1), (1.0, 1.0, 9)] * 30
    curve = routing_curve(LENGTH, with_needs(make_item, rows))
    assert curve.apgr < 0.5
    assert curve.verdict == "worse"


def test_costs_are_those_of_who_answers(make_item):
    costs = [(1.0, 10.0), (2.0, 20.0)]
    items = [
        make_item(
            str(i),
            0.0,
            1.0,
            prompt="x" * (9 - i),
            costs={"small": {"seconds": a}, "large": {"seconds": b}},
            confidence=Confidence(-9.0 + i, 1.0),
        )
        for i, (a, b) in enumerate(costs)
    ]
    plain = [routing_curve(LENGTH, items).points[i].costs["seconds"] for i in (0, 10, 20)]
    assert plain == pytest.approx([1.5, (10 + 2) / 2, 15])
    # A cascade has asked the small model first, always.
    cascade = [routing_curve(CASCADE, items).points[i].costs["seconds"] for i in (0, 10, 20)]
    assert cascade == pytest.approx([1.5, (1 + 10 + 2) / 2, 16.5])


def test_a_unit_that_an_item_lacks_is_left_out(make_item):
    both = {"small": {"seconds": 1.0, "joules": 1.0}, "large": {"seconds": 1.0, "joules": 2.0}}
    one = {"small": {"seconds": 1.0}, "large": {"seconds": 1.0, "joules": 2.0}}
    items = [make_item("a", 0.0, 1.0, costs=both), make_item("b", 0.0, 1.0, costs=one)]
    assert set(routing_curve(LENGTH, items).points[0].costs) == {"seconds"}


def test_thresholds_send_the_share_asked_for_or_less(make_item):
    items = with_needs(make_item, [(0.0, 1.0, need) for need in (1, 2, 3, 3, 4)])
    needs = needs_of(LENGTH, items)
    for share in (0.0, 0.1, 0.2, 0.5, 0.6, 0.8, 1.0):
        threshold = threshold_for(needs, share)
        sent = np.mean([LENGTH.at(threshold).decide(i.request).model == "large" for i in items])
        assert sent <= share
    assert threshold_for(needs, 0.6) == 3
    assert threshold_for(needs, 0.0) > 4


def test_one_item_has_no_interval(make_item):
    curve = routing_curve(LENGTH, [make_item("a", 0.0, 1.0)])
    assert curve.lift_interval is None
    assert curve.verdict == "undecided"
    assert curve.to_dict()["apgr_low"] is None


def test_plain_data_holds_everything(make_items):
    data = routing_curve(LENGTH, make_items(50)).to_dict()
    assert len(data["points"]) == len(SHARES)
    assert data["points"][0]["costs"] == {"seconds": pytest.approx(1.0)}
    assert set(data["cpt"]) == {"0.5", "0.8"}
    assert data["verdict"] in ("better", "worse", "undecided")


def test_bad_input_is_named(make_item):
    with pytest.raises(ConfigError, match="no items"):
        routing_curve(LENGTH, [])
    with pytest.raises(ConfigError, match="no quality of 'large'"):
        routing_curve(LENGTH, [make_item("a", 0.0, 1.0, quality={"small": 1.0})])
    with pytest.raises(MeasurementError, match="needs confidence"):
        routing_curve(CASCADE, [make_item("a", 0.0, 1.0)])
    with pytest.raises(ConfigError, match="share must be from 0 to 1"):
        threshold_for(np.array([1.0]), 1.5)
    with pytest.raises(ConfigError, match="no items"):
        threshold_for(np.array([]), 0.5)
