"""Block sizes of paged attention, and which rows each program takes."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from infopt.kernels.triton_ops.common import power_of_two


@dataclass(frozen=True, slots=True)
class BlockShape:
    """Sizes of one compiled variant: rows, cached tokens per tile, warps, pipeline stages."""

    rows: int
    tokens: int
    num_warps: int
    num_stages: int


@dataclass(frozen=True, slots=True)
class RowBlocks:
    """Which rows a program takes: int32 ``(num_blocks,)`` each.

    Attributes:
        sequence: Row of the block table.
        token: First token.
        count: Tokens, at most ``shape.rows // share``.
        shape: Block sizes it was made for.
    """

    sequence: torch.Tensor
    token: torch.Tensor
    count: torch.Tensor
    shape: BlockShape


def block_shape(
    dtype: torch.dtype, head_dim: int, share: int, *, decode: bool, old: bool = False
) -> BlockShape:
    """Return the block sizes for a type; float32 has one for decodes and prefill alike.

    Args:
        dtype: Of queries and pages.
        head_dim: Width of a head.
        share: Query heads per key head.
        decode: One token per program.
        old: Rows may be quantized: a tile is then held in both forms, and has to be smaller.
    """
    wide = power_of_two(head_dim, 16) > (64 if old else 128)
    rows = power_of_two(share, 16)
    if dtype == torch.float32:  # products without tensor cores, in registers
        return BlockShape(rows, 16 if wide else 32, 8, 2)
    if decode:
        return BlockShape(rows, 32 if wide else 64, 4, 2)
    if old:
        return BlockShape(max(rows, 32), 32, 4, 2)
    return BlockShape(max(rows, 64), 32, 8, 2) if wide else BlockShape(max(rows, 128), 64, 8, 2)


def plan_prefill(
    query_starts: list[int],
    num_decodes: int,
    share: int,
    shape: BlockShape,
    device: torch.device,
) -> RowBlocks:
    """Cut the chunks of all prefilling sequences into row blocks.

    Args:
        query_starts: ``num_seqs + 1`` offsets into the tokens.
        num_decodes: Leading sequences to leave out.
        share: Query heads per key head.
        shape: From :func:`block_shape`.
        device: Where the batch is.
    """
    step = shape.rows // share
    blocks = [
        (sequence, token, min(step, query_starts[sequence + 1] - token))
        for sequence in range(num_decodes, len(query_starts) - 1)
        for token in range(query_starts[sequence], query_starts[sequence + 1], step)
    ]
    table = torch.tensor(blocks, dtype=torch.int32).view(-1, 3).t().contiguous().to(device)
    return RowBlocks(table[0], table[1], table[2], shape)
