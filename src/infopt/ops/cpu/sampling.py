"""The draw of a token in C++: no sort, one pass over the logits of a row for its weights."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from infopt.ops.cpu.build import extension

if TYPE_CHECKING:
    from infopt.ops.sampling import DrawParams, DrawTokens


def load_draw_tokens() -> DrawTokens:
    """Return the op; see :func:`infopt.ops.sampling.draw_tokens` for its contract."""
    draw = extension().draw_tokens

    def draw_tokens(logits: torch.Tensor, params: DrawParams, numbers: list[float]) -> list[int]:
        """Draw one token per row.

        The weights are rounded differently from the reference's, so a number that lies within about
        1e-6 of a boundary may give the neighbouring candidate.
        """
        return draw(logits, params.temperature, params.min_p, params.top_k, params.top_p, numbers)

    return draw_tokens
