"""Root-mean-square norm with an optional residual addition in front (arXiv 1910.07467).

``normed = r / sqrt(mean(r^2) + eps) * weight`` with ``r = x + residual``; statistics in float32.
"""

from __future__ import annotations

import torch

from infopt.ops import cpu, gpu
from infopt.ops.dispatch import Implementation


def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """Normalise the last dimension.

    Args:
        x: ``(..., size)`` in the compute type.
        weight: float32 ``(size,)``, the actual multiplier.
        eps: Added to the mean square.

    Returns:
        Same shape and type as ``x``.
    """
    wide = x.float()
    scale = torch.rsqrt(wide.square().mean(-1, keepdim=True).add_(eps))
    return (wide * scale).mul_(weight).to(x.dtype)


def add_rms_norm(
    x: torch.Tensor, residual: torch.Tensor | None, weight: torch.Tensor, eps: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """Add the residual, then normalise.

    Args:
        x: ``(num_tokens, size)``.
        residual: Same shape, or None at the first layer.
        weight: float32 ``(size,)``.
        eps: Added to the mean square.

    Returns:
        ``(normed, x + residual)``.
    """
    total = x if residual is None else x + residual
    return rms_norm(total, weight, eps), total


IMPLEMENTATIONS = [
    Implementation("cpu", cpu.load_add_rms_norm, cpu.why_not),
    Implementation("triton", gpu.load_add_rms_norm, gpu.why_not),
    Implementation("reference", lambda: add_rms_norm),
]
