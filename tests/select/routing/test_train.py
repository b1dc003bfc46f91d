"""Training: every kind, thresholds by target, and honesty about unseen prompts."""

from __future__ import annotations

import numpy as np
import pytest

from infopt.errors import ConfigError
from infopt.select.routing import (
    TRAINERS,
    ClassifierPolicy,
    RandomPolicy,
    RoutingItem,
    policy_from_dict,
    policy_to_dict,
    routing_curve,
    split_items,
    train_policy,
)
from infopt.select.routing.items import needs_of


@pytest.mark.parametrize("kind", TRAINERS.names())
def test_every_kind_trains_and_meets_its_share(make_items, kind):
    train, test = split_items(make_items(300))
    policy = train_policy(kind, train, "small", "large", share=0.4)
    sent = np.mean([policy.decide(i.request).model == "large" for i in train])
    # The classifier's threshold is set out of fold, the random one's without looking.
    is_near = isinstance(policy, RandomPolicy | ClassifierPolicy)
    assert sent <= (0.55 if is_near else 0.4)
    assert policy_from_dict(policy_to_dict(policy)) == policy
    assert routing_curve(policy, test).num_items == len(test)


@pytest.mark.parametrize("kind", ["classes", "classifier", "perplexity", "cascade"])
def test_policies_that_see_the_difference_beat_a_random_one(make_items, kind):
    train, test = split_items(make_items(400))
    assert routing_curve(train_policy(kind, train, "small", "large"), test).verdict == "better"


def test_labels_without_meaning_teach_nothing(make_items):
    """Trained on answers of other prompts, the classifier says nearly the same of all of them."""
    train, test = split_items(make_items(300))
    rng = np.random.default_rng(0)
    shuffled = [
        RoutingItem(item.item_id, item.prompt, item.group, train[other].quality)
        for item, other in zip(train, rng.permutation(len(train)), strict=True)
    ]
    spread = [
        np.std(needs_of(train_policy("classifier", items, "small", "large"), test))
        for items in (train, shuffled)
    ]
    assert spread[1] < spread[0] / 2


def test_recovering_a_share_of_the_gap_costs_no_more_than_a_random_router(make_items):
    train, test = split_items(make_items(400))
    policy = train_policy("classifier", train, "small", "large", recover=0.8)
    sent = [policy.decide(i.request).model == "large" for i in test]
    weak, strong = (np.array([i.quality[m] for i in test]) for m in ("small", "large"))
    recovered = (np.where(sent, strong, weak).mean() - weak.mean()) / (strong - weak).mean()
    assert recovered > np.mean(sent) + 0.1
    assert 0.6 < recovered < 1.0


def test_classes_are_drawn_towards_the_mean(make_item):
    """One sum that gained decides nothing: ten prompts of average gain stand beside it."""
    items = [make_item("sum", 0.0, 1.0, prompt="1 + 1 =")]
    items += [make_item(str(i), 0.0, 0.0) for i in range(19)]
    policy = train_policy("classes", items, "small", "large")
    needs = {item.name: item.need for item in policy.classes}
    assert needs["arithmetic"] == pytest.approx((1 + 10 * 0.05) / 11, abs=1e-4)
    assert policy.other_need == pytest.approx(10 * 0.05 / 29, abs=1e-4)


def test_bad_targets_are_named(make_items, make_item):
    items = make_items(40)
    with pytest.raises(ConfigError, match="one of share and recover"):
        train_policy("length", items, "small", "large", share=0.5, recover=0.5)
    with pytest.raises(ConfigError, match="one of share and recover"):
        train_policy("length", items, "small", "large", quality=0.5)
    with pytest.raises(ConfigError, match="share must be"):
        train_policy("length", items, "small", "large", share=2)
    with pytest.raises(ConfigError, match="trainable routing policy"):
        train_policy("lengths", items, "small", "large")
    with pytest.raises(ConfigError, match="no quality of 'huge'"):
        train_policy("classifier", items, "small", "huge")
    with pytest.raises(ConfigError, match="no items"):
        train_policy("length", [], "small", "large")
    equal = [make_item(str(i), 1.0, 1.0) for i in range(10)]
    with pytest.raises(ConfigError, match="no better than small"):
        train_policy("length", equal, "small", "large", recover=0.5)
