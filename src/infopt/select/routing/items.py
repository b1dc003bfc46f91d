"""`RoutingItem`: one prompt that both models have answered, and sets of them."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from infopt.errors import ConfigError, MeasurementError, check_known_keys
from infopt.select.routing.policy import PairPolicy, check_number
from infopt.select.routing.request import Confidence, RouteRequest

_HASH_BITS = 48


@dataclass(frozen=True, slots=True)
class RoutingItem:
    """A prompt with what every model made of it.

    Attributes:
        item_id: Unique name.
        prompt: The text.
        group: Kind of task; tables are split by it.
        quality: By model, from 0 (wrong) to 1 (right).
        costs: By model and unit (``seconds``, ``joules``, ...), for this prompt.
        prompt_logprob: Mean log-probability of the prompt under the cheap model, if known.
        confidence: Of the cheap model's answer, if known.
    """

    item_id: str
    prompt: str
    group: str
    quality: Mapping[str, float]
    costs: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    prompt_logprob: float | None = None
    confidence: Confidence | None = None

    def __post_init__(self) -> None:
        """Check the values.

        Raises:
            ConfigError: Names item, field and value.
        """
        for name in ("item_id", "prompt", "group"):
            if not isinstance(getattr(self, name), str):
                raise ConfigError(
                    f"{name} must be a text, got {getattr(self, name)!r}.", field=name
                )
        for model, value in self.quality.items():
            check_number(f"{self.item_id}: quality of {model}", value, 0, 1)
        for model, units in self.costs.items():
            for unit, value in units.items():
                check_number(f"{self.item_id}: {unit} of {model}", value, 0, 1e12)
        if self.prompt_logprob is not None:
            check_number(f"{self.item_id}: prompt_logprob", self.prompt_logprob)

    @property
    def request(self) -> RouteRequest:
        """What a policy is given."""
        return RouteRequest(self.prompt, self.prompt_logprob, self.confidence)

    def to_dict(self) -> dict[str, Any]:
        """Return plain data, a line of a file of items."""
        return dataclasses.asdict(self)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> RoutingItem:
        """Read plain data.

        Raises:
            ConfigError: Names the unknown, missing or wrong field.
        """
        names = [f.name for f in dataclasses.fields(cls)]
        check_known_keys(data, names, "an item")
        for name in ("item_id", "prompt", "group", "quality"):
            if name not in data:
                raise ConfigError(f"An item lacks {name!r}.", field=name)
        values = dict(data)
        confidence = values.get("confidence")
        if confidence is not None:
            check_known_keys(confidence, ("mean_logprob", "margin"), "confidence")
            values["confidence"] = Confidence(**confidence)
        return cls(**values)


def read_items(path: str | Path) -> list[RoutingItem]:
    """Read a JSON-lines file of items.

    Raises:
        ConfigError: Names file and line.
    """
    items: list[RoutingItem] = []
    try:
        lines = Path(path).read_text("utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} cannot be read: {error}", field="items") from None
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            data = json.loads(line)
            if not isinstance(data, dict):
                raise ConfigError("a line must be an object.", field="items")
            items.append(RoutingItem.from_dict(data))
        except (ValueError, TypeError, ConfigError, MeasurementError) as error:
            raise ConfigError(f"{path}, line {number}: {error}", field="items") from None
    check_items(items)
    return items


def check_items(items: Sequence[RoutingItem]) -> None:
    """Refuse an empty set, and two items of one name.

    Raises:
        ConfigError: Names what is wrong.
    """
    if not items:
        raise ConfigError("There are no items.", field="items", remedy="Score some prompts first.")
    seen: set[str] = set()
    for item in items:
        if item.item_id in seen:
            raise ConfigError(
                f"Two items are called {item.item_id!r}.", field="item_id", value=item.item_id
            )
        seen.add(item.item_id)


def split_items(
    items: Sequence[RoutingItem], *, test_share: float = 0.5, seed: int = 0
) -> tuple[list[RoutingItem], list[RoutingItem]]:
    """Return items to train on and items to judge on.

    Within each group, by a hash of the prompt: equal prompts stay on one side, so nothing that was
    trained on is judged, and more items move none of the old ones across by more than the share
    asks for.

    Args:
        items: All of them.
        test_share: Share to judge on, between 0 and 1.
        seed: Another seed splits in another way.

    Raises:
        ConfigError: If a side would be empty.
    """
    check_items(items)
    check_number("test_share", test_share, 0, 1)
    train: list[RoutingItem] = []
    test: list[RoutingItem] = []
    for group in sorted({item.group for item in items}):
        inside = [item for item in items if item.group == group]
        order = sorted({_place(item, seed) for item in inside})
        first_train = order[: round(test_share * len(order))]
        is_test = set(first_train)
        for item in inside:
            (test if _place(item, seed) in is_test else train).append(item)
    if not train or not test:
        raise ConfigError(
            f"{len(items)} items leave a side empty at test_share={test_share}.",
            field="test_share",
            value=test_share,
        )
    return train, test


def folds_of(items: Sequence[RoutingItem], num_folds: int) -> NDArray[np.int64]:
    """Return a fold per item, shape (num_items,): equal sizes, equal prompts together."""
    places = [_place(item, -1) for item in items]
    rank = {place: index for index, place in enumerate(sorted(set(places)))}
    return np.array([rank[place] % num_folds for place in places], dtype=np.int64)


def qualities(items: Sequence[RoutingItem], model: str) -> NDArray[np.float64]:
    """Return the quality of each item under a model, shape (num_items,).

    Raises:
        ConfigError: Names the item that lacks it.
    """
    for item in items:
        if model not in item.quality:
            raise ConfigError(
                f"Item {item.item_id!r} has no quality of {model!r}.", field="quality", value=model
            )
    return np.array([item.quality[model] for item in items], dtype=np.float64)


def cost_units(items: Sequence[RoutingItem], models: Sequence[str]) -> list[str]:
    """Return the units in which every item has a cost of every model."""
    sets = [set(item.costs.get(model, ())) for item in items for model in models]
    return sorted(set.intersection(*sets)) if sets else []


def costs_of(items: Sequence[RoutingItem], model: str, unit: str) -> NDArray[np.float64]:
    """Return the cost of each item under a model, shape (num_items,)."""
    return np.array([item.costs[model][unit] for item in items], dtype=np.float64)


def needs_of(policy: PairPolicy, items: Sequence[RoutingItem]) -> NDArray[np.float64]:
    """Return the policy's need of each item, shape (num_items,)."""
    return np.array([policy.need(item.request) for item in items], dtype=np.float64)


def _place(item: RoutingItem, seed: int) -> int:
    text = f"{seed}:{item.prompt}".encode("utf-8", "replace")
    return int.from_bytes(hashlib.blake2b(text, digest_size=_HASH_BITS // 8).digest(), "big")
