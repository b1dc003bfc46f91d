"""The memory behind the page pools: one buffer of equal-byte pages each, and host room to swap."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from infopt.cache.compaction import QuantizedMove, RowMove
from infopt.cache.groups import KVLayout
from infopt.cache.quantized_pages import QuantizedLayout
from infopt.ops.context import KVPages
from infopt.ops.kv_quantization import QuantizedPages, decode, encode
from infopt.ops.rotary import rotate


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

    def read_rows(
        self,
        group: int,
        table: Sequence[int],
        num_rows: int,
        quantized_table: Sequence[int] = (),
        num_read: int = 0,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Copy keys and values of a sequence out of a group's pages.

        Args:
            group: KV group.
            table: Its pages.
            num_rows: Rows stored in them.
            quantized_table: Its quantized pages.
            num_read: First rows, which are read from those.

        Returns:
            Two tensors ``(num_layers, num_kv_heads, num_rows, head_dim)``.
        """
        num_layers = len(self.layout.groups[group].layers)
        pages = torch.tensor(table, device=self.buffer.device)
        rows = self.buffer[pages, :num_layers].permute(1, 2, 3, 0, 4, 5).flatten(3, 4)
        keys, values = rows[:, 0, :, :num_rows], rows[:, 1, :, :num_rows]
        if not num_read:
            return keys, values
        assert self.quantized is not None
        coded = self.quantized.read_rows(num_layers, quantized_table)
        old_keys, old_values = (part[:, :, :num_read] for part in coded)
        keys, values = keys.float()[:, :, num_read:], values.float()[:, :, num_read:]
        return torch.cat((old_keys, keys), 2), torch.cat((old_values, values), 2)

    def move_rows(self, move: RowMove, turns: torch.Tensor | None = None) -> None:
        """Move the rows that a compaction keeps; sources and targets may overlap.

        Args:
            move: From where to where.
            turns: Turns each key back by as many positions as its row goes down
                (`infopt.models.rope.turn_table`); None keeps the rotation of keys.
        """
        if move.quantized is not None:
            self._move_both(move, move.quantized, turns)
            return
        size, rows = self.layout.block_size, move.kept.rows[:, :, move.start :]
        sources = torch.tensor(move.sources, device=self.buffer.device)
        layers, heads = self._layers_and_heads(rows)
        moved = self.buffer[sources[rows // size], layers, :, heads, rows % size]
        if turns is not None:
            moved[..., 0, :] = _turned(moved[..., 0, :], move, move.start, turns)
        self._write_rows(move, moved)

    def _move_both(self, move: RowMove, coded: QuantizedMove, turns: torch.Tensor | None) -> None:
        """Quantize the kept rows that are read so, and write the others in full."""
        assert self.quantized is not None
        read = (coded.group, move.sources, coded.num_rows, coded.sources, coded.num_read)
        rows = move.kept.rows[..., None].expand(-1, -1, -1, self.layout.head_dim)
        keys, values = (part.gather(2, rows) for part in self.read_rows(*read))
        if turns is not None:
            keys = _turned(keys, move, 0, turns)
        self.quantized.write_rows(coded.targets, keys, values)
        moved = torch.stack((keys, values), 3)[:, :, move.start :]
        self._write_rows(move, moved.to(self.buffer.dtype))

    def _write_rows(self, move: RowMove, moved: torch.Tensor) -> None:
        """Write ``(num_layers, num_kv_heads, rows from move.start on, 2, head_dim)``."""
        size, device = self.layout.block_size, self.buffer.device
        targets = torch.tensor(move.targets, device=device)
        place = torch.arange(move.start, move.kept.num_rows, device=device)
        layers, heads = self._layers_and_heads(moved)
        self.buffer[targets[place // size], layers, :, heads, place % size] = moved

    def _layers_and_heads(self, like: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        device = self.buffer.device
        layers = torch.arange(like.shape[0], device=device)[:, None, None]
        return layers, torch.arange(like.shape[1], device=device)[:, None]


def _turned(keys: torch.Tensor, move: RowMove, start: int, turns: torch.Tensor) -> torch.Tensor:
    """Return keys ``(num_layers, num_kv_heads, rows from start on, head_dim)`` turned back."""
    rows = move.kept.rows[:, :, start:]
    down = rows - torch.arange(start, move.kept.num_rows, device=rows.device)
    cos, sin = turns[:, down.flatten()]
    turned = rotate(keys.float().flatten(0, 2).unsqueeze(1), cos, sin)
    return turned.view(keys.shape).to(keys.dtype)


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

    def read_rows(self, num_layers: int, table: Sequence[int]) -> tuple[torch.Tensor, torch.Tensor]:
        """Return keys and values of row groups, float32.

        Args:
            num_layers: Layers of the KV group.
            table: Its pages.

        Returns:
            Two tensors ``(num_layers, num_kv_heads, rows, head_dim)``.
        """
        pages = torch.tensor(table, device=self.buffer.device)
        data = self.buffer[pages, :num_layers].permute(1, 2, 0, 3)
        coded = decode(data, self.layout.format, self.layout.layout.head_dim)
        return coded.keys.flatten(2, 3), coded.values.flatten(2, 3)

    def write_rows(self, table: Sequence[int], keys: torch.Tensor, values: torch.Tensor) -> None:
        """Quantize the first rows into row groups.

        Args:
            table: Pages of the row groups.
            keys: ``(num_layers, num_kv_heads, rows, head_dim)``; rows behind the groups are left.
            values: Same shape.
        """
        if not table:
            return
        size, count = self.layout.format.group_size, len(table)
        keys, values = (p[:, :, : size * count].unflatten(2, (count, size)) for p in (keys, values))
        data = encode(keys, values, self.layout.format)
        pages = torch.tensor(table, device=self.buffer.device)
        self.buffer[pages, : keys.shape[0]] = data.permute(2, 0, 1, 3)
