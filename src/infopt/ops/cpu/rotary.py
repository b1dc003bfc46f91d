"""Norm, rotation and page write in C++."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import torch

from infopt.ops.context import KVPages
from infopt.ops.cpu.build import extension

if TYPE_CHECKING:
    from infopt.ops.rotary import HeadNorms


def load_rotary_and_write() -> Callable[..., torch.Tensor]:
    """Return the op; see :func:`infopt.ops.rotary.rotary_and_write` for its contract."""
    rotate = extension().rotary_and_write

    def rotary_and_write(
        qkv: torch.Tensor,
        cos: torch.Tensor,
        sin: torch.Tensor,
        pages: KVPages,
        slots: torch.Tensor,
        norms: HeadNorms | None = None,
    ) -> torch.Tensor:
        """Prepare queries and store keys and values."""
        if norms is None:
            return rotate(qkv, cos, sin, pages.keys, pages.values, slots, None, None, 0.0)
        return rotate(
            qkv, cos, sin, pages.keys, pages.values, slots, norms.query, norms.key, norms.eps
        )

    return rotary_and_write
