"""Paged attention in C++."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import torch

from infopt.ops.context import ForwardContext, GroupContext, KVPages
from infopt.ops.cpu.build import extension

if TYPE_CHECKING:
    from infopt.ops.kv_quantization import QuantizedPages

_KINDS = ("int8", "int4", "int2", "fp8_e4m3", "fp8_e5m2")
"""In the order of ``CodeKind`` in ``kernels/csrc/include/kv_codes.h``."""


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
            group.rows_of(ctx),
            group.block_tables,
            starts,
            num_decodes,
            group.window or 0,
            scale,
            softcap or 0.0,
            code_pages(pages.quantized) if group.quantized is not None else None,
            group.quantized.block_tables if group.quantized is not None else None,
        )

    return paged_attention


def load_quantize_pages() -> Callable[..., None]:
    """Return the op; see :func:`infopt.ops.kv_quantization.quantize_pages` for its contract."""
    quantize = extension().quantize_pages

    def quantize_pages(pages: KVPages, jobs: torch.Tensor) -> None:
        """Quantize row groups out of full-precision pages."""
        if jobs.shape[0]:
            quantize(pages.keys, pages.values, code_pages(pages.quantized), jobs)

    return quantize_pages


def code_pages(pages: QuantizedPages | None) -> tuple[torch.Tensor, int, int, int] | None:
    """Return quantized pages as the kernels take them."""
    if pages is None:
        return None
    fmt = pages.format
    return pages.data, _KINDS.index(fmt.dtype), fmt.group_size, fmt.residual
