"""Splits packed q, k, v; norms and rotates q and k; writes k and v into their pages.

One op, because a fused kernel can do all of it in a single pass over the activations. The rotation
is the rotate-half form (arXiv 2104.09864 as stored by Hugging Face): with ``x = [a, b]`` halves,
``[a cos - b sin, b cos + a sin]``.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from infopt.ops import cpu, gpu
from infopt.ops.context import KVPages
from infopt.ops.dispatch import Implementation
from infopt.ops.rms_norm import rms_norm


@dataclass(frozen=True, slots=True)
class HeadNorms:
    """RMS norms over each head's query and key (Qwen3, Gemma3); float32 ``(head_dim,)``."""

    query: torch.Tensor
    key: torch.Tensor
    eps: float


def rotate(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """Rotate heads.

    Args:
        x: ``(num_tokens, num_heads, head_dim)``.
        cos: ``(num_tokens, head_dim / 2)`` in the type of ``x``.
        sin: Same shape.
    """
    a, b = x.chunk(2, dim=-1)
    cos, sin = cos.unsqueeze(1), sin.unsqueeze(1)
    return torch.cat((a * cos - b * sin, b * cos + a * sin), dim=-1)


def rotary_and_write(
    qkv: torch.Tensor,
    cos: torch.Tensor,
    sin: torch.Tensor,
    pages: KVPages,
    slots: torch.Tensor,
    norms: HeadNorms | None = None,
) -> torch.Tensor:
    """Prepare queries and store keys and values.

    Args:
        qkv: ``(num_tokens, (num_heads + 2 * num_kv_heads) * head_dim)``: q, k, v side by side.
        cos: ``(num_tokens, head_dim / 2)``.
        sin: Same shape.
        pages: Where this layer keeps keys and values.
        slots: int64 ``(num_tokens,)``: ``page * block_size + offset``.
        norms: Norms of query and key heads, where the family has them.

    Returns:
        Rotated queries ``(num_tokens, num_heads, head_dim)``.
    """
    _, num_kv_heads, block_size, head_dim = pages.keys.shape
    heads = qkv.view(qkv.shape[0], -1, head_dim)
    num_heads = heads.shape[1] - 2 * num_kv_heads
    q, k = heads[:, :num_heads], heads[:, num_heads : num_heads + num_kv_heads]
    if norms is not None:
        q, k = rms_norm(q, norms.query, norms.eps), rms_norm(k, norms.key, norms.eps)
    page, offset = slots // block_size, slots % block_size
    pages.keys[page, :, offset] = rotate(k, cos, sin).to(pages.keys.dtype)
    pages.values[page, :, offset] = heads[:, num_heads + num_kv_heads :].to(pages.values.dtype)
    return rotate(q, cos, sin)


IMPLEMENTATIONS = [
    Implementation("cpu", cpu.load_rotary_and_write, cpu.why_not),
    Implementation("triton", gpu.load_rotary_and_write, gpu.why_not),
    Implementation("reference", lambda: rotary_and_write),
]
