"""transformers' `Cache` over the engine's pages.

A module hands what it caches to ``update`` (and ``update_indexer``) and gets all visible rows back:
new rows are written to the pages of the layer's KV group, visible ones are gathered from them.
What arrives is stored as it is, so families that cache latents have latents in their pages.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from transformers.cache_utils import Cache, CacheLayerMixin, DummyLayer

from infopt.errors import UnsupportedModelError
from infopt.models.fallback.parts import LayerPartPages, LayerParts, PartPages
from infopt.models.fallback.step import GroupRows, Rectangle, group_rows
from infopt.ops import ForwardContext


class PagedLayer(CacheLayerMixin):
    """One layer of one rectangle.

    Args:
        pages: Pages of the layer.
        rows: Where the rectangle lies in them.
        rectangle: Its sequences.
        is_sliding: Whether transformers builds a window mask for the layer.
    """

    is_compileable = False

    def __init__(
        self, pages: LayerPartPages, rows: GroupRows, rectangle: Rectangle, is_sliding: bool
    ) -> None:
        """Nothing is read before the module asks."""
        super().__init__()
        self._pages, self._rows, self._rectangle = pages, rows, rectangle
        self.is_sliding = is_sliding

    def lazy_initialization(self, key_states: torch.Tensor, value_states: torch.Tensor) -> None:
        """Pages are there already."""

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Store ``(sequences, heads, num_new, width)`` and return all visible ones.

        Raises:
            UnsupportedModelError: For an argument that pages cannot honour.
        """
        _refuse(args, kwargs)
        return self._heads("keys", key_states), self._heads("values", value_states)

    def update_indexer(self, indexer_key_states: torch.Tensor) -> torch.Tensor:
        """Store ``(sequences, num_new, width)`` index keys and return all visible ones."""
        return self._exchange("index_keys", indexer_key_states)

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        """Return the number of visible columns and how many lie before them."""
        del query_length
        return self._rectangle.longest - self._rows.first, self._rows.first

    def get_seq_length(self) -> int:
        """Return the width of the padded past."""
        return self._rectangle.longest - self._rectangle.num_new

    def get_max_length(self) -> int:
        """Return -1: the engine has checked lengths before."""
        return -1

    def _heads(self, name: str, new: torch.Tensor) -> torch.Tensor:
        heads = new.shape[1]
        rows = self._exchange(name, new.transpose(1, 2).flatten(2))
        return rows.unflatten(2, (heads, -1)).transpose(1, 2)

    def _exchange(self, name: str, new: torch.Tensor) -> torch.Tensor:
        pages: PartPages = self._pages.parts[name]
        self._rows.write(pages.rows, new)
        return self._rows.read(pages.rows)


class PagedCache(Cache):
    """The cache of one rectangle of a step."""

    def __init__(
        self,
        ctx: ForwardContext,
        rectangle: Rectangle,
        layers: Sequence[LayerParts],
        pages: Mapping[int, LayerPartPages],
        block_size: int,
    ) -> None:
        """Find the rows of each KV group once for all its layers.

        Args:
            ctx: The batch.
            rectangle: Which sequences of it.
            layers: What each layer caches.
            pages: Where, by layer.
            block_size: Tokens per page.
        """
        groups = [group_rows(ctx, rectangle, i, block_size) for i in range(len(ctx.groups))]
        super().__init__(
            layers=[
                PagedLayer(
                    pages[index], groups[pages[index].group], rectangle, layer.window is not None
                )
                if layer.parts
                else DummyLayer()
                for index, layer in enumerate(layers)
            ]
        )


def _refuse(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
    names = [name for name, value in kwargs.items() if value is not None]
    names += [f"positional argument {i}" for i, value in enumerate(args) if value is not None]
    if names:
        raise UnsupportedModelError(
            f"this family hands {', '.join(names)} to its cache, which pages cannot honour.",
            field=names[0],
            remedy="Run it with transformers itself.",
        )
