"""The memory behind the page pools: one buffer of equal-byte pages each, and host room to swap."""

from __future__ import annotations

import torch

from infopt.cache.groups import KVLayout
from infopt.cache.quantized_pages import QuantizedLayout
from infopt.ops.context import KVPages
from infopt.ops.kv_quantization import QuantizedPages


class PageBuffer:
    """Pages of one shape, on a device, and host memory for some of them.

    Args:
        page_shape: Shape of a page, which is contiguous: swapped or moved by one copy.
        num_pages: Usable pages; one more, the null page, is added in front.
        num_swap_pages: Pages of host memory.
        dtype: Type of the stored numbers.
        device: Where the pages live.
    """

    def __init__(
        self,
        page_shape: tuple[int, ...],
        num_pages: int,
        num_swap_pages: int,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        """Allocate; pages are zero, since masked rows are multiplied by zero and must be finite."""
        self.buffer = torch.zeros((num_pages + 1, *page_shape), dtype=dtype, device=device)
        self._swap_shape = (num_swap_pages, *page_shape)
        self._swap: torch.Tensor | None = None

    @property
    def num_pages(self) -> int:
        """Usable pages."""
        return self.buffer.shape[0] - 1

    @property
    def num_bytes(self) -> int:
        """Bytes of the device buffer."""
        return self.buffer.nbytes

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


class PageStore(PageBuffer):
    """Keys and values of all pages in one tensor.

    A page is contiguous: ``(layers_per_group, 2, num_kv_heads, block_size, head_dim)``. Layers are
    strided views of it.

    Args:
        layout: KV groups and page shape.
        num_pages: Usable pages; one more, the null page, is added in front.
        num_swap_pages: Pages of host memory.
        dtype: Type of the stored numbers.
        device: Where the pages live.
        quantized: Quantized pages; None where there are none.
    """

    def __init__(
        self,
        layout: KVLayout,
        num_pages: int,
        num_swap_pages: int,
        dtype: torch.dtype,
        device: torch.device,
        quantized: QuantizedStore | None = None,
    ) -> None:
        """Allocate."""
        self.layout, self.quantized = layout, quantized
        heads = (layout.num_kv_heads, layout.block_size, layout.head_dim)
        page_shape = (layout.layers_per_group, 2, *heads)
        super().__init__(page_shape, num_pages, num_swap_pages, dtype, device)

    def layer_pages(self, num_layers: int) -> list[tuple[int, KVPages]]:
        """Return, per layer, the index of its KV group and its keys and values."""
        pages = []
        for layer in range(num_layers):
            group, slot = self.layout.place_of(layer)
            old = self.quantized.layer_pages(group, slot) if self.quantized is not None else None
            parts = (self.buffer[:, slot, 0], self.buffer[:, slot, 1], old)
            pages.append((group, KVPages(*parts)))
        return pages


class QuantizedStore(PageBuffer):
    """All quantized pages in one tensor.

    A page is uint8 ``(layers_per_group, num_kv_heads, head_bytes)``.

    Args:
        layout: What is quantized.
        num_pages: Usable pages; one more, the null page, is added in front.
        num_swap_pages: Pages of host memory.
        device: Where the pages live.
    """

    def __init__(
        self,
        layout: QuantizedLayout,
        num_pages: int,
        num_swap_pages: int,
        device: torch.device,
    ) -> None:
        """Allocate."""
        self.layout, full = layout, layout.layout
        head_bytes = layout.format.head_bytes(full.head_dim)
        shape = (full.layers_per_group, full.num_kv_heads, head_bytes)
        super().__init__(shape, num_pages, num_swap_pages, torch.uint8, device)

    def layer_pages(self, group: int, slot: int) -> QuantizedPages | None:
        """Return the pages of a layer, None where its KV group has none."""
        if not self.layout.is_quantized(group):
            return None
        return QuantizedPages(self.buffer[:, slot], self.layout.format, self.layout.layout.head_dim)
