"""Inputs of a decode step at fixed addresses, filled on the host and copied in one piece."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch

from infopt.ops import ForwardContext, GroupContext

_ALIGNMENT = 256
"""Bytes at which a tensor starts: compiled kernels depend on alignments."""


class InputShape(NamedTuple):
    """Size of a bucket.

    Attributes:
        rows: Sequences, one token each.
        pages: Columns of the block tables.
    """

    rows: int
    pages: int

    def __str__(self) -> str:
        return f"{self.rows} rows x {self.pages} pages"


@dataclass(frozen=True, slots=True)
class _Fields:
    """The same tensors on the host or on the device: ``(rows,)``, or tables ``(rows, pages)``."""

    input_ids: torch.Tensor
    positions: torch.Tensor
    logit_rows: torch.Tensor
    slots: list[torch.Tensor]
    block_tables: list[torch.Tensor]

    @classmethod
    def carve(
        cls, shape: InputShape, num_groups: int, take: Callable[..., torch.Tensor]
    ) -> _Fields:
        """Lay the fields out one after the other."""
        rows, pages = shape
        return cls(
            input_ids=take((rows,), torch.int64),
            positions=take((rows,), torch.int64),
            logit_rows=take((rows,), torch.int64),
            slots=[take((rows,), torch.int64) for _ in range(num_groups)],
            block_tables=[take((rows, pages), torch.int32) for _ in range(num_groups)],
        )


class InputMemory:
    """Bytes that the inputs of all buckets share: only one bucket is in use at a time.

    Args:
        largest: The largest bucket.
        windows: Sliding window of each KV group, or None.
        device: Where steps run.
    """

    def __init__(
        self, largest: InputShape, windows: Sequence[int | None], device: torch.device
    ) -> None:
        """Allocate on the host (pinned for a GPU) and on the device."""
        self.windows = tuple(windows)
        size = _Carver(None)
        _Fields.carve(largest, len(self.windows), size)
        pinned = device.type == "cuda"
        self.host = torch.zeros(size.num_bytes, dtype=torch.uint8, pin_memory=pinned)
        self.device = torch.zeros(size.num_bytes, dtype=torch.uint8, device=device)


class StaticInputs:
    """The inputs of one bucket.

    Args:
        shape: Rows and pages.
        memory: Where they lie.
        block_size: Tokens per page.
    """

    def __init__(self, shape: InputShape, memory: InputMemory, block_size: int) -> None:
        """Lay the tensors out."""
        num_groups = len(memory.windows)
        host, device = _Carver(memory.host), _Carver(memory.device)
        self._fields = _Fields.carve(shape, num_groups, host)
        fields = _Fields.carve(shape, num_groups, device)
        self._host = memory.host[: host.num_bytes]
        self._device = memory.device[: device.num_bytes]
        self.context = ForwardContext(
            input_ids=fields.input_ids,
            positions=fields.positions,
            query_starts=list(range(shape.rows + 1)),
            # A bound for every step of the bucket: launches are chosen by it.
            context_lens=[shape.pages * block_size] * shape.rows,
            num_decodes=shape.rows,
            groups=[
                GroupContext(tables, slots, window)
                for tables, slots, window in zip(
                    fields.block_tables, fields.slots, memory.windows, strict=True
                )
            ],
            logit_rows=fields.logit_rows,
        )

    def fill(self, ctx: ForwardContext) -> None:
        """Take over a batch that fits; all else becomes padding.

        Args:
            ctx: One token per sequence, on the host.
        """
        # Zero is padding everywhere: token 0 at position 0, in slot 0 of the null page.
        self._host.zero_()
        fields = self._fields
        fields.input_ids[: ctx.num_tokens] = ctx.input_ids
        fields.positions[: ctx.num_tokens] = ctx.positions
        fields.logit_rows[: ctx.logit_rows.shape[0]] = ctx.logit_rows
        for slots, tables, group in zip(fields.slots, fields.block_tables, ctx.groups, strict=True):
            slots[: ctx.num_tokens] = group.slots
            tables[: ctx.num_seqs, : group.block_tables.shape[1]] = group.block_tables
        # Not asynchronous: the next step writes into the host's memory.
        self._device.copy_(self._host)


class _Carver:
    """Cuts tensors from a run of bytes; without one it only counts."""

    def __init__(self, memory: torch.Tensor | None) -> None:
        self._memory = memory
        self.num_bytes = 0

    def __call__(self, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        start = self.num_bytes
        length = torch.Size(shape).numel() * dtype.itemsize
        self.num_bytes += -(-length // _ALIGNMENT) * _ALIGNMENT
        if self._memory is None:
            return torch.empty(0, dtype=dtype)
        return self._memory[start : start + length].view(dtype).view(shape)
