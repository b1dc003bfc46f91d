"""Scored prompts with a known answer to "which model?"."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from infopt.select.routing import Confidence, RoutingItem

WORDS = ("tree", "river", "stone", "cloud", "bread", "paper", "glass", "music")


@pytest.fixture
def make_item() -> Callable[..., RoutingItem]:
    """Factory of an item: qualities of "small" and "large", then whatever else."""

    def make(name: str, weak: float, strong: float, **values: object) -> RoutingItem:
        fields = {
            "item_id": name,
            "prompt": f"prompt {name}",
            "group": "task",
            "quality": {"small": weak, "large": strong},
        }
        return RoutingItem(**(fields | values))  # type: ignore[arg-type]

    return make


@pytest.fixture
def make_items(make_item: Callable[..., RoutingItem]) -> Callable[..., list[RoutingItem]]:
    """Factory of many items: the large model alone can do sums, both know words half the time."""

    def make(count: int = 200, seed: int = 0) -> list[RoutingItem]:
        rng = random.Random(seed)
        items = []
        for index in range(count):
            is_sum = rng.random() < 0.5
            text = (
                f"{rng.randrange(900)} + {rng.randrange(900)} ="
                if is_sum
                else f"what is {rng.choice(WORDS)} near {rng.choice(WORDS)} of {rng.choice(WORDS)}"
            )
            weak = float(rng.random() < (0.1 if is_sum else 0.5))
            strong = float(rng.random() < (0.9 if is_sum else 0.5))
            sure = -0.1 if weak else -1.0
            items.append(
                make_item(
                    f"item-{index}",
                    weak,
                    strong,
                    prompt=text,
                    group="sums" if is_sum else "words",
                    costs={"small": {"seconds": 1.0}, "large": {"seconds": 10.0}},
                    prompt_logprob=-3.0 if is_sum else -1.0,
                    confidence=Confidence(sure, -sure),
                )
            )
        return items

    return make
