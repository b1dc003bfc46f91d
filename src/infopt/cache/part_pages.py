"""Pages for layers that do not all cache the same: latents, index keys, heads of several widths.

A page holds ``block_size`` tokens of all layers of a KV group. Layers that keep the same tokens
share a group as long as its row fits the page; all pages are equally large, so the rarer kind of
layer sets the size and one pool serves full and window groups.

    page:  [ layer 0 keys | layer 0 values | layer 1 keys | ... ]   each (block_size, heads * width)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import torch

from infopt.cache.groups import KVGroup, KVLayout
from infopt.cache.pages import PageStore
from infopt.models.fallback.parts import LayerPartPages, LayerParts, PartPages, split_evenly


@dataclass(frozen=True, slots=True)
class PartLayout(KVLayout):
    """How the parts of all layers are cut into pages.

    The base class sees one head as wide as a row: `layers_per_group` is 1, and keys and values are
    one row together.

    Attributes:
        layers: What each layer caches.
        row_values: Numbers per token in a page.
    """

    layers: tuple[LayerParts, ...] = ()
    row_values: int = 0

    @property
    def page_bytes(self) -> int:
        """Bytes of a page: row * block_size * bytes."""
        return self.row_values * self.block_size * self.bytes_per_value

    @property
    def stored_bytes_per_token(self) -> int:
        """Bytes one token really takes while every layer keeps it, empty room left out."""
        return sum(layer.values_per_token for layer in self.layers) * self.bytes_per_value


def plan_part_layout(
    layers: Sequence[LayerParts], block_size: int, bytes_per_value: int, max_model_len: int
) -> PartLayout:
    """Form KV groups whose rows fit pages of one size.

    A window that no sequence can outgrow is full attention.

    Args:
        layers: What each layer caches.
        block_size: Tokens per page.
        bytes_per_value: Size of one stored number.
        max_model_len: Longest sequence.
    """
    kinds: dict[int | None, list[tuple[int, int]]] = {}
    for index, layer in enumerate(layers):
        if layer.parts:
            outgrown = layer.window is not None and layer.window < max_model_len
            window = layer.window if outgrown else None
            kinds.setdefault(window, []).append((index, layer.values_per_token))
    row = _best_row(list(kinds.values()))
    groups = [
        KVGroup(tuple(run), window)
        for window, members in sorted(kinds.items(), key=lambda item: item[0] or 0)
        for run in split_evenly(members, row)
    ]
    return PartLayout(
        groups=tuple(groups),
        layers_per_group=1,
        block_size=block_size,
        num_kv_heads=1,
        head_dim=row,
        bytes_per_value=bytes_per_value,
        layers=tuple(layers),
        row_values=row,
    )


def _best_row(kinds: list[list[tuple[int, int]]]) -> int:
    """Return the numbers per token of a page that leave least room unused; of equals the largest.

    Args:
        kinds: Per kind of layer, ``(layer, numbers per token)``.
    """
    largest = max(size for members in kinds for _, size in members)
    sums = {row for members in kinds for row in accumulate(size for _, size in members)}
    rows = [row for row in sums | {largest} if row >= largest]
    return min(rows, key=lambda row: (row * sum(len(split_evenly(k, row)) for k in kinds), -row))


class PartStore(PageStore):
    """Memory of the pages of a `PartLayout`; swapping is that of `PageStore`."""

    def __init__(
        self,
        layout: PartLayout,
        num_pages: int,
        num_swap_pages: int,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        """Allocate; pages are zero, since masked rows are multiplied by zero and must be finite."""
        self.layout, self.quantized = layout, None
        shape = (layout.row_values * layout.block_size,)
        self.buffer = torch.zeros((num_pages + 1, *shape), dtype=dtype, device=device)
        self._swap_shape = (num_swap_pages, *shape)
        self._swap: torch.Tensor | None = None

    def layer_pages(self, num_layers: int) -> Any:
        """Return the pages of every layer that caches anything, by layer (`LayerPartPages`)."""
        assert isinstance(self.layout, PartLayout) and num_layers == len(self.layout.layers)
        pages: dict[int, LayerPartPages] = {}
        for index, group in enumerate(self.layout.groups):
            offset = 0
            for layer in group.layers:
                parts = {}
                for part in self.layout.layers[layer].parts:
                    size = part.values_per_token * self.layout.block_size
                    view = self.buffer[:, offset : offset + size]
                    rows = view.unflatten(1, (self.layout.block_size, part.values_per_token))
                    parts[part.name] = PartPages(part, rows)
                    offset += size
                pages[layer] = LayerPartPages(index, parts)
        return pages
