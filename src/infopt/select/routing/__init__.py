"""Routing: which request goes to which model.

>>> train, test = split_items(read_items("items.jsonl"))
>>> policy = train_policy("classifier", train, "small", "large", recover=0.8)
>>> routing_curve(policy, test).apgr
>>> write_policy(policy, "policy.yaml")    # infopt serve small large --route policy.yaml
"""

from infopt.select.routing.ab import PairedModels, compare_models
from infopt.select.routing.classifier import ClassifierPolicy
from infopt.select.routing.curve import CurvePoint, RoutingCurve, routing_curve, threshold_for
from infopt.select.routing.items import RoutingItem, read_items, split_items
from infopt.select.routing.model_policies import CascadePolicy, PerplexityPolicy
from infopt.select.routing.policy import POLICIES, PairPolicy, Policy
from infopt.select.routing.policy_file import (
    policy_from_dict,
    policy_to_dict,
    read_policy,
    write_policy,
)
from infopt.select.routing.prompt_policies import (
    ClassPolicy,
    LengthPolicy,
    PromptClass,
    RandomPolicy,
)
from infopt.select.routing.request import Confidence, Decision, RouteRequest, confidence_of
from infopt.select.routing.train import TRAINERS, train_policy

__all__ = [
    "POLICIES",
    "TRAINERS",
    "CascadePolicy",
    "ClassPolicy",
    "ClassifierPolicy",
    "Confidence",
    "CurvePoint",
    "Decision",
    "LengthPolicy",
    "PairPolicy",
    "PairedModels",
    "PerplexityPolicy",
    "Policy",
    "PromptClass",
    "RandomPolicy",
    "RouteRequest",
    "RoutingCurve",
    "RoutingItem",
    "compare_models",
    "confidence_of",
    "policy_from_dict",
    "policy_to_dict",
    "read_items",
    "read_policy",
    "routing_curve",
    "split_items",
    "threshold_for",
    "train_policy",
    "write_policy",
]
