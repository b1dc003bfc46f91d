"""Paged attention in Triton: which kernel variant each part of a batch gets.

In float32 every row goes through one variant that walks the whole context, so that a row has the
same bits as a decode and within any chunk. Types of 16 bits make no such promise: their decodes are
split over cached tokens, and their chunks use large tiles.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import torch

from infopt.ops.context import ForwardContext, GroupContext, KVPages

if TYPE_CHECKING:
    from infopt.kernels.triton_ops.attention import OldRows, RowBlocks


def load_attention() -> Callable[..., torch.Tensor]:
    """Return the op; see :func:`infopt.ops.attention.paged_attention` for its contract."""
    from infopt.kernels.triton_ops import attention as kernel

    def paged_attention(
        q: torch.Tensor,
        pages: KVPages,
        ctx: ForwardContext,
        group: GroupContext,
        scale: float,
        softcap: float | None = None,
    ) -> torch.Tensor:
        """Attend from every token of the batch to the cached tokens of its sequence."""
        out = torch.empty_like(q)
        old = old_rows(pages, group)
        num_decodes = 0 if q.dtype == torch.float32 else ctx.num_decodes
        parts = (q, pages.keys, pages.values, group.block_tables, group.rows_of(ctx), out)
        if num_decodes:
            kernel.paged_attention(
                *parts,
                scale=scale,
                softcap=softcap,
                window=group.window,
                num_decodes=num_decodes,
                max_context=max(group.row_lens_of(ctx)[:num_decodes]),
                split_tokens=kernel.SPLIT_TOKENS,
                old=old,
            )
        if ctx.num_seqs > num_decodes:
            blocks = row_blocks(ctx, q, pages.keys.shape[1], num_decodes, is_mixed=old is not None)
            kernel.paged_attention(
                *parts, scale=scale, softcap=softcap, window=group.window, blocks=blocks, old=old
            )
        return out.flatten(1)

    return paged_attention


def old_rows(pages: KVPages, group: GroupContext) -> OldRows | None:
    """Return the quantized rows of a layer, where it may have any.

    Whether it has some in this step makes no difference: the bits of a row depend on the tile.
    """
    from infopt.kernels.triton_ops.attention import OldRows

    tables = group.quantized
    if pages.quantized is None or tables is None:
        return None
    fmt = pages.quantized.format
    return OldRows(
        pages.quantized.data, tables.block_tables, fmt.dtype, fmt.group_size, fmt.residual
    )


def row_blocks(
    ctx: ForwardContext,
    q: torch.Tensor,
    num_kv_heads: int,
    num_decodes: int,
    is_mixed: bool = False,
) -> RowBlocks:
    """Return the row blocks of a batch, made once and shared by all layers.

    Args:
        ctx: The batch.
        q: Queries of any layer, ``(num_tokens, num_heads, head_dim)``.
        num_kv_heads: Heads of the pages.
        num_decodes: Leading sequences that are not in the blocks.
        is_mixed: Whether rows may be quantized.
    """
    from infopt.kernels.triton_ops import attention as kernel

    share = q.shape[1] // num_kv_heads
    shape = kernel.block_shape(q.dtype, q.shape[2], share, decode=False, old=is_mixed)
    key = ("triton row blocks", num_decodes, share, shape)
    if key not in ctx.shared:
        ctx.shared[key] = kernel.plan_prefill(ctx.query_starts, num_decodes, share, shape, q.device)
    return ctx.shared[key]
