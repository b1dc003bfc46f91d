"""A/B of identical prompts against numbers worked out by hand."""

from __future__ import annotations

import pytest

from infopt.errors import ConfigError
from infopt.select.routing import compare_models


def test_pairs_by_hand(make_item):
    costs = {"small": {"seconds": 1.0}, "large": {"seconds": 4.0}}
    rows = [(0.0, 1.0)] * 6 + [(1.0, 0.0)] + [(1.0, 1.0)] * 3
    items = [make_item(str(i), a, b, costs=costs) for i, (a, b) in enumerate(rows)]
    [result] = compare_models(items, ["small", "large"])
    assert (result.quality, result.reference_quality) == (0.9, 0.4)
    assert result.paired.difference == pytest.approx(0.5)
    assert (result.paired.num_gained, result.paired.num_lost) == (6, 1)
    assert result.paired.p_value == pytest.approx(2 * (1 + 7) / 2**7)
    assert result.paired.low < 0.5 < result.paired.high
    assert result.cost_ratios["seconds"].median == pytest.approx(4)
    assert result.to_dict()["num_gained"] == 6
    assert result.to_dict()["cost_ratios"]["seconds"]["verdict"] == "worse"


def test_every_model_and_group_is_compared(make_items):
    items = [
        type(i)(i.item_id, i.prompt, i.group, {**i.quality, "huge": 1.0}) for i in make_items(60)
    ]
    results = compare_models(items, ["small", "large", "huge"])
    found = [(r.model, r.group) for r in results]
    assert found == [(m, g) for m in ("large", "huge") for g in (None, "sums", "words")]
    by = {(r.model, r.group): r for r in results}
    assert sum(by["large", g].num_items for g in ("sums", "words")) == 60
    assert by["huge", None].paired.num_lost == 0
    assert by["huge", None].cost_ratios == {}


def test_bad_input_is_named(make_items):
    with pytest.raises(ConfigError, match="at least two models"):
        compare_models(make_items(5), ["small"])
    with pytest.raises(ConfigError, match="no items"):
        compare_models([], ["small", "large"])
    with pytest.raises(ConfigError, match="no quality of 'huge'"):
        compare_models(make_items(5), ["small", "huge"])
