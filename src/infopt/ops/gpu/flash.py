"""Attention by flash-attn, where it is installed (its paged caches want pages of 256 tokens).

Its cache layout is ``(num_pages, page_size, num_kv_heads, head_dim)`` with any strides but the
last, so a view of our pages will do. Decodes take its split kernel, chunks its varlen kernel; both
align the causal mask to the end of the context, which is what a chunk behind cached tokens needs.
"""

from __future__ import annotations

import functools
import importlib.util
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import torch

from infopt.ops.context import ForwardContext, GroupContext, KVPages
from infopt.ops.dispatch import OpTarget

PAGE_MULTIPLE = 256
MAX_HEAD_DIM = 256


def why_not_flash(target: OpTarget) -> str | None:
    """Return why flash-attn cannot run on a target, or None."""
    if target.device.type != "cuda":
        return "needs a CUDA device"
    return _why_not_shape(target) if _is_installed() else "flash-attn is not installed"


def _why_not_shape(target: OpTarget) -> str | None:
    if target.kv_cache_dtype != "auto":
        return f"it does not read {target.kv_cache_dtype} pages"
    if target.dtype not in (torch.bfloat16, torch.float16):
        return f"{target.dtype} is not bfloat16 or float16"
    if target.head_dim is not None and (target.head_dim > MAX_HEAD_DIM or target.head_dim % 8):
        return f"head_dim {target.head_dim} is not a multiple of 8 up to {MAX_HEAD_DIM}"
    if target.block_size is None or target.block_size % PAGE_MULTIPLE:
        given = "not given" if target.block_size is None else target.block_size
        return f"block_size is {given}, it needs a multiple of {PAGE_MULTIPLE}"
    return None


@functools.cache
def _is_installed() -> bool:
    return importlib.util.find_spec("flash_attn") is not None


def load_flash_attention() -> Callable[..., torch.Tensor]:
    """Return the op; see :func:`infopt.ops.attention.paged_attention` for its contract."""
    from flash_attn import (  # pyright: ignore[reportMissingImports]
        flash_attn_varlen_func,
        flash_attn_with_kvcache,
    )

    def paged_attention(
        q: torch.Tensor,
        pages: KVPages,
        ctx: ForwardContext,
        group: GroupContext,
        scale: float,
        softcap: float | None = None,
    ) -> torch.Tensor:
        """Attend from every token of the batch to the cached tokens of its sequence."""
        keys, values = pages.keys.transpose(1, 2), pages.values.transpose(1, 2)
        window = (-1, -1) if group.window is None else (group.window - 1, 0)
        common: dict[str, Any] = {
            "softmax_scale": scale,
            "causal": True,
            "window_size": window,
            "softcap": softcap or 0.0,
        }
        num_decodes, out = ctx.num_decodes, torch.empty_like(q)
        if num_decodes:
            attended = flash_attn_with_kvcache(
                q[:num_decodes].unsqueeze(1),
                keys,
                values,
                cache_seqlens=(group.rows_of(ctx)[:num_decodes] + 1).int(),
                block_table=group.block_tables[:num_decodes],
                **common,
            )
            out[:num_decodes] = attended.squeeze(1)
        if ctx.num_seqs > num_decodes:
            out[num_decodes:] = flash_attn_varlen_func(
                q[num_decodes:],
                keys,
                values,
                block_table=group.block_tables[num_decodes:],
                **chunk_lengths(ctx, q.device, group.row_lens),
                **common,
            )
        return out.flatten(1)

    return paged_attention


def chunk_lengths(
    ctx: ForwardContext, device: torch.device, row_lens: list[int] | None = None
) -> dict[str, Any]:
    """Return lengths of the prefill chunks as flash-attn names them, once for all layers.

    Args:
        ctx: The batch.
        device: Where they are read.
        row_lens: Rows of each sequence, where they are not its context length.
    """
    key = ("flash-attn lengths", tuple(row_lens or ()))
    if key not in ctx.shared:
        starts = ctx.query_starts[ctx.num_decodes :]
        contexts = (row_lens or ctx.context_lens)[ctx.num_decodes :]
        cached = torch.tensor([0, *contexts], dtype=torch.int32).cumsum(0, dtype=torch.int32)
        ctx.shared[key] = {
            "cu_seqlens_q": torch.tensor(starts, dtype=torch.int32).sub_(starts[0]).to(device),
            "cu_seqlens_k": cached.to(device),
            "max_seqlen_q": max(b - a for a, b in pairwise(starts)),
            "max_seqlen_k": max(contexts),
        }
    return ctx.shared[key]
