"""Paged attention in C++."""

from __future__ import annotations

from collections.abc import Callable

import torch

from infopt.ops.context import ForwardContext, GroupContext, KVPages
from infopt.ops.cpu.build import extension


def load_attention() -> Callable[..., torch.Tensor]:
    """Return the op; see :func:`infopt.ops.attention.paged_attention` for its contract."""
    attention = extension().attention

    def paged_attention(
        q: torch.Tensor,
        pages: KVPages,
        ctx: ForwardContext,
        group: GroupContext,
        scale: float,
        softcap: float | None = None,
    ) -> torch.Tensor:
        """Attend from every token of the batch to the cached tokens of its sequence."""
        num_decodes = ctx.num_decodes
        starts = ctx.query_starts[num_decodes:] if ctx.num_seqs > num_decodes else []
        return attention(
            q,
            pages.keys,
            pages.values,
            ctx.positions,
            group.block_tables,
            starts,
            num_decodes,
            group.window or 0,
            scale,
            softcap or 0.0,
        )

    return paged_attention
