"""The memory behind the page pool: one buffer of equal-byte pages, and host room for swapping."""

from __future__ import annotations

import torch

from infopt.cache.groups import KVLayout
from infopt.ops.context import KVPages


class PageStore:
    """Keys and values of all pages in one tensor.

    A page is contiguous: ``(layers_per_group, 2, num_kv_heads, block_size, head_dim)``. Layers are
    strided views of it, so that a page is swapped or moved by one copy.

    Args:
        layout: KV groups and page shape.
        num_pages: Usable pages; one more, the null page, is added in front.
        num_swap_pages: Pages of host memory.
        dtype: Type of the stored numbers.
        device: Where the pages live.
    """

    def __init__(
        self,
        layout: KVLayout,
        num_pages: int,
        num_swap_pages: int,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        """Allocate; pages are zero, since masked rows are multiplied by zero and must be finite."""
        self.layout = layout
        page_shape = (
            layout.layers_per_group,
            2,
            layout.num_kv_heads,
            layout.block_size,
            layout.head_dim,
        )
        self.buffer = torch.zeros((num_pages + 1, *page_shape), dtype=dtype, device=device)
        self._swap_shape = (num_swap_pages, *page_shape)
        self._swap: torch.Tensor | None = None

    @property
    def num_bytes(self) -> int:
        """Bytes of the device buffer."""
        return self.buffer.nbytes

    def layer_pages(self, num_layers: int) -> list[tuple[int, KVPages]]:
        """Return, per layer, the index of its KV group and its keys and values."""
        pages = []
        for layer in range(num_layers):
            group, slot = self.layout.place_of(layer)
            pages.append((group, KVPages(self.buffer[:, slot, 0], self.buffer[:, slot, 1])))
        return pages

    def swap_out(self, moves: list[tuple[int, int]]) -> None:
        """Copy ``(page, host page)`` pairs to the host."""
        if moves:
            if self._swap is None:  # most runs never swap: memory is taken when the first one does
                # Not zeroed, so that only pages in use are ever touched.
                self._swap = torch.empty(self._swap_shape, dtype=self.buffer.dtype)
            pages, hosts = (torch.tensor(ids) for ids in zip(*moves, strict=True))
            self._swap[hosts] = self.buffer[pages.to(self.buffer.device)].to("cpu")

    def swap_in(self, moves: list[tuple[int, int]]) -> None:
        """Copy ``(host page, page)`` pairs back."""
        if moves:
            assert self._swap is not None
            hosts, pages = (torch.tensor(ids) for ids in zip(*moves, strict=True))
            self.buffer[pages.to(self.buffer.device)] = self._swap[hosts].to(self.buffer.device)
