"""What one layer caches per token, as plain data, and the pages that hold it."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

PARTS = ("keys", "values", "index_keys")
"""Names of the parts; families with latents hand them over in the place of keys and values."""


@dataclass(frozen=True, slots=True)
class CachePart:
    """One tensor that a layer caches.

    Attributes:
        name: One of `PARTS`.
        heads: Heads stored per token (1 for latents and index keys).
        width: Numbers per head.
        label: What it is, where that is not its name.
    """

    name: str
    heads: int
    width: int
    label: str = ""

    @property
    def values_per_token(self) -> int:
        """Numbers one token adds."""
        return self.heads * self.width


@dataclass(frozen=True, slots=True)
class LayerParts:
    """What one layer caches, and for how long.

    Attributes:
        parts: Empty for layers that cache nothing (they read another layer's keys).
        window: Tokens a query sees, itself included (None: all).
    """

    parts: tuple[CachePart, ...]
    window: int | None = None

    @property
    def values_per_token(self) -> int:
        """Numbers one token adds."""
        return sum(part.values_per_token for part in self.parts)

    def describe(self) -> str:
        """Return ``keys 2x16 + values 2x16, window 24`` or ``nothing``."""
        if not self.parts:
            return "nothing"
        text = " + ".join(
            f"{part.label or part.name} {part.heads}x{part.width}" for part in self.parts
        )
        return text if self.window is None else f"{text}, window {self.window}"


@dataclass(frozen=True, slots=True)
class PartPages:
    """Pages of one part of one layer: a view into the pool.

    Attributes:
        part: What they hold.
        rows: Shape ``(num_pages, block_size, heads * width)``; pages are strided, rows contiguous.
    """

    part: CachePart
    rows: torch.Tensor


@dataclass(frozen=True, slots=True)
class LayerPartPages:
    """Pages of one layer.

    Attributes:
        group: Index of its KV group.
        parts: By name of the part.
    """

    group: int
    parts: dict[str, PartPages]


def describe_layers(layers: tuple[LayerParts, ...]) -> str:
    """Return what layers cache, equal ones together: ``2 x [keys 2x16 + values 2x16]``."""
    counts: dict[str, int] = {}
    for layer in layers:
        counts[layer.describe()] = counts.get(layer.describe(), 0) + 1
    return ", ".join(f"{count} x [{text}]" for text, count in counts.items())


def split_evenly(layers: list[tuple[int, int]], capacity: int) -> list[list[int]]:
    """Cut layers into runs of at most ``capacity`` numbers a token, in order.

    Args:
        layers: ``(layer, numbers per token)``.
        capacity: At least the largest of them.
    """
    runs: list[list[int]] = []
    used = math.inf
    for layer, size in layers:
        if used + size > capacity:
            runs.append([])
            used = 0
        runs[-1].append(layer)
        used += size
    return runs
