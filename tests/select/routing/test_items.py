"""Items, files of them, and splits that leak nothing."""

from __future__ import annotations

import json

import numpy as np
import pytest

from infopt.errors import ConfigError
from infopt.select.routing import RoutingItem, read_items, split_items
from infopt.select.routing.items import cost_units, folds_of


def test_a_file_of_items_is_read_back(tmp_path, make_items):
    items = make_items(5)
    path = tmp_path / "items.jsonl"
    lines = [json.dumps(item.to_dict()) for item in items]
    path.write_text("\n".join([*lines, "", ""]))
    assert read_items(path) == items


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{", "line 2"),
        ("[]", "must be an object"),
        ('{"item_id": "b", "prompt": "p", "group": "g"}', "lacks 'quality'"),
        ('{"item_id": "b", "prompt": "p", "group": "g", "quality": {"m": 2}}', "from 0 to 1"),
        ('{"item_id": "b", "prompt": "p", "group": "g", "quality": {}, "x": 1}', "option 'x'"),
        ('{"item_id": "b", "prompt": 1, "group": "g", "quality": {}}', "must be a text"),
        (
            '{"item_id": "b", "prompt": "p", "group": "g", "quality": {}, '
            '"costs": {"m": {"seconds": -1}}}',
            "seconds of m",
        ),
        (
            '{"item_id": "b", "prompt": "p", "group": "g", "quality": {}, '
            '"confidence": {"mean_logprob": -1, "margn": 0}}',
            "margn",
        ),
        ('{"item_id": "a", "prompt": "p", "group": "g", "quality": {}}', "Two items"),
    ],
)
def test_a_bad_line_is_named(tmp_path, line, message):
    path = tmp_path / "items.jsonl"
    path.write_text('{"item_id": "a", "prompt": "p", "group": "g", "quality": {}}\n' + line)
    with pytest.raises(ConfigError, match=message):
        read_items(path)


def test_an_empty_or_absent_file_is_named(tmp_path):
    (tmp_path / "empty.jsonl").write_text("\n")
    with pytest.raises(ConfigError, match="no items"):
        read_items(tmp_path / "empty.jsonl")
    with pytest.raises(ConfigError, match="cannot be read"):
        read_items(tmp_path / "absent.jsonl")


@pytest.mark.parametrize("seed", range(4))
def test_equal_prompts_stay_together_and_groups_are_shared_out(make_items, make_item, seed):
    items = make_items(120, seed)
    items += [
        make_item(f"again-{i.item_id}", 0.0, 1.0, prompt=i.prompt, group=i.group) for i in items
    ]
    train, test = split_items(items, test_share=0.4, seed=seed)
    assert len(train) + len(test) == len(items)
    assert not {i.prompt for i in train} & {i.prompt for i in test}
    for group in ("sums", "words"):
        inside = [i for i in items if i.group == group]
        judged = [i for i in test if i.group == group]
        assert len(judged) / len(inside) == pytest.approx(0.4, abs=0.05)


def test_a_split_is_reproducible_and_another_seed_another_one(make_items):
    items = make_items(60)
    assert split_items(items) == split_items(items)
    assert split_items(items) != split_items(items, seed=1)
    forward = {i.item_id for i in split_items(items)[0]}
    assert {i.item_id for i in split_items(items[::-1])[0]} == forward


def test_a_split_with_an_empty_side_is_refused(make_items):
    for share in (0.0, 1.0):
        with pytest.raises(ConfigError, match="side empty"):
            split_items(make_items(10), test_share=share)
    with pytest.raises(ConfigError, match="test_share"):
        split_items(make_items(10), test_share=-0.1)


def test_folds_are_even_and_keep_equal_prompts_together(make_items, make_item):
    items = make_items(50)
    folds = folds_of([*items, make_item("again", 0.0, 1.0, prompt=items[0].prompt)], 5)
    assert folds[0] == folds[-1]
    assert np.bincount(folds[:-1]).max() - np.bincount(folds[:-1]).min() <= 2


def test_cost_units_are_those_that_all_have(make_items):
    items = make_items(3)
    assert cost_units(items, ("small", "large")) == ["seconds"]
    bare = RoutingItem("x", "p", "g", {"small": 1.0, "large": 1.0})
    assert cost_units([*items, bare], ("small", "large")) == []
