"""Tiles of cached rows as the reference attention reads them: one form, or both side by side."""

from __future__ import annotations

from typing import Protocol

import torch
import torch.nn.functional as F

from infopt.ops.context import KVPages, QuantizedTables
from infopt.ops.kv_quantization import Dequantized, QuantizedPages, decode


class Tile(Protocol):
    """Keys and values of consecutive rows."""

    def scores(self, queries: torch.Tensor) -> torch.Tensor:
        """Return float32 ``(num_seqs, num_kv_heads, num_queries, tile)``."""
        ...

    def weighted(self, weights: torch.Tensor) -> torch.Tensor:
        """Return the values' weighted sum ``(num_seqs, num_kv_heads, num_queries, head_dim)``."""
        ...


class Tiles(Protocol):
    """Reads tiles; their rows start at multiples of whole pages."""

    def read(self, first_page: int, end_page: int) -> Tile:
        """Return the rows of the pages ``first_page .. end_page``, null rows behind the table."""
        ...


class PlainTiles:
    """Full-precision pages.

    Args:
        pages: Keys and values of the layer.
        block_tables: int32 ``(num_seqs, num_pages)``.
    """

    def __init__(self, pages: KVPages, block_tables: torch.Tensor) -> None:
        """Remember where the rows are."""
        self._pages, self._block_tables = pages, block_tables

    def read(self, first_page: int, end_page: int) -> PlainTile:
        """Gather a tile."""
        table = cut_table(self._block_tables, first_page, end_page)
        return PlainTile(_gather(self._pages.keys, table), _gather(self._pages.values, table))


class PlainTile:
    """Keys and values ``(num_seqs, num_kv_heads, tile, head_dim)`` in one type."""

    def __init__(self, keys: torch.Tensor, values: torch.Tensor) -> None:
        """Take the rows."""
        self.keys, self.values = keys, values

    def scores(self, queries: torch.Tensor) -> torch.Tensor:
        """See `Tile`."""
        return torch.matmul(queries, self.keys.transpose(-1, -2)).float()

    def weighted(self, weights: torch.Tensor) -> torch.Tensor:
        """See `Tile`."""
        return torch.matmul(weights.to(self.values.dtype), self.values)


class MixedTiles:
    """Both forms; rows below a query's bound are read quantized.

    Args:
        pages: Keys and values of the layer, in both forms.
        block_tables: int32 ``(num_seqs, num_pages)``: full-precision pages.
        tables: int32 ``(num_seqs, num_groups)``: quantized pages.
        bounds: int64 ``(num_seqs, 1, num_queries, 1)``.
    """

    def __init__(
        self,
        pages: KVPages,
        block_tables: torch.Tensor,
        tables: torch.Tensor,
        bounds: torch.Tensor,
    ) -> None:
        """Remember where the rows are."""
        assert pages.quantized is not None
        self._full, self._quantized = PlainTiles(pages, block_tables), pages.quantized
        self._tables, self._bounds = tables, bounds
        self._block_size, self._highest = pages.block_size, int(bounds.max())

    def read(self, first_page: int, end_page: int) -> Tile:
        """Gather a tile; where no query reads a row quantized it holds one form alone."""
        full = self._full.read(first_page, end_page)
        start, end = first_page * self._block_size, end_page * self._block_size
        # A sum over weights that are all zero adds nothing, not a bit: it may be left out.
        if start >= self._highest:
            return full
        size = self._quantized.format.group_size
        table = cut_table(self._tables, start // size, end // size)
        index = torch.arange(start, end, device=table.device)
        return MixedTile(full, _dequantize(self._quantized, table), index < self._bounds)


class MixedTile:
    """The same rows in both forms, and which of them each query reads."""

    def __init__(self, full: PlainTile, old: Dequantized, is_old: torch.Tensor) -> None:
        """Take the rows; ``is_old`` is ``(num_seqs, 1, num_queries, tile)``."""
        self._full, self._old, self._is_old = full, old, is_old

    def scores(self, queries: torch.Tensor) -> torch.Tensor:
        """See `Tile`."""
        old = torch.matmul(queries.float(), self._old.keys.transpose(-1, -2))
        return torch.where(self._is_old, old, self._full.scores(queries))

    def weighted(self, weights: torch.Tensor) -> torch.Tensor:
        """See `Tile`."""
        old = torch.matmul(weights.masked_fill(~self._is_old, 0.0), self._old.values)
        return old + self._full.weighted(weights.masked_fill(self._is_old, 0.0))


def tiles_of(
    pages: KVPages, block_tables: torch.Tensor, old: QuantizedTables | None, rows: torch.Tensor
) -> Tiles:
    """Return what reads the rows of sequences.

    Args:
        pages: Keys and values of the layer.
        block_tables: int32 ``(num_seqs, num_pages)``.
        old: Quantized part of the tables of the same sequences.
        rows: int64 ``(num_seqs, 1, num_queries, 1)``: the rows of the queries.
    """
    if old is None or pages.quantized is None or not old.block_tables.shape[1]:
        return PlainTiles(pages, block_tables)
    bounds = pages.quantized.format.readable_rows(rows, pages.block_size)
    return MixedTiles(pages, block_tables, old.block_tables, bounds)


def cut_table(block_tables: torch.Tensor, start: int, end: int) -> torch.Tensor:
    """Return columns ``start .. end`` of a table, null pages where it is shorter."""
    table = block_tables[:, start:end]
    return F.pad(table, (0, end - start - table.shape[1]))


def _gather(pages: torch.Tensor, table: torch.Tensor) -> torch.Tensor:
    """Return ``(num_seqs, num_kv_heads, tile, head_dim)`` of the pages in a table."""
    num_seqs, num_pages = table.shape
    _, num_kv_heads, block_size, head_dim = pages.shape
    tile = pages.index_select(0, table.reshape(-1))
    tile = tile.view(num_seqs, num_pages, num_kv_heads, block_size, head_dim)
    return tile.transpose(1, 2).reshape(num_seqs, num_kv_heads, num_pages * block_size, head_dim)


def _dequantize(pages: QuantizedPages, table: torch.Tensor) -> Dequantized:
    """Return float32 ``(num_seqs, num_kv_heads, tile, head_dim)`` of the quantized pages."""
    num_seqs, num_groups = table.shape
    data = pages.data.index_select(0, table.reshape(-1))
    parts = []
    for part in decode(data, pages.format, pages.head_dim):
        rows = part.unflatten(0, (num_seqs, num_groups)).transpose(1, 2)
        # One layout in memory: the path that BLAS takes must not depend on the batch.
        parts.append(rows.flatten(2, 3).contiguous())
    return Dequantized(*parts)
