"""Draws one token per row from its logits.

    weight = softmax((logits - best) / temperature), then min_p, top_k and top_p, each on what the
    one before it left; the token is the first at which the cumulative weight, in id order, exceeds
    number * (sum of what is left)

Of equal weights those with the lowest ids stay. A row from which nothing can be drawn (all masked,
or logits that are no numbers) gives token 0.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from infopt.ops import cpu
from infopt.ops.dispatch import Implementation

_CANDIDATES = 1024
"""top_p first looks at this many candidates; a full sort follows only if they do not reach it."""


@dataclass(frozen=True, slots=True)
class DrawParams:
    """How the rows of a batch are drawn; one entry per row in each list.

    Attributes:
        temperature: At least 0; however small, the best token keeps its place.
        min_p: Least weight relative to the best, in [0, 1].
        top_k: Most candidates; 0 or less is off.
        top_p: Share of the mass to keep, in (0, 1].
    """

    temperature: list[float]
    min_p: list[float]
    top_k: list[int]
    top_p: list[float]


DrawTokens = Callable[[torch.Tensor, DrawParams, list[float]], list[int]]
"""Logits ``(num_rows, vocab_size)``, parameters and one number in [0, 1) per row; token ids."""


def draw_tokens(logits: torch.Tensor, params: DrawParams, numbers: list[float]) -> list[int]:
    """Draw one token per row.

    Args:
        logits: float32 ``(num_rows, vocab_size)``; not changed.
        params: How to draw.
        numbers: In [0, 1), one per row: they alone decide.

    Returns:
        Token ids.
    """
    return pick(distribution(logits, params), numbers)


def pick(weights: torch.Tensor, numbers: list[float]) -> list[int]:
    """Return, per row, the token at which the cumulative weight exceeds a share of the whole.

    Args:
        weights: float64 ``(num_rows, vocab_size)``, not normalised.
        numbers: In [0, 1), one per row.
    """
    cumulative = weights.cumsum(dim=-1)
    total = cumulative[:, -1]
    target = torch.tensor(numbers, dtype=torch.float64, device=weights.device) * total
    # right=True skips tokens of probability zero, also when the number is exactly 0.
    found = torch.searchsorted(cumulative, target.unsqueeze(1), right=True).squeeze(1)
    return torch.where(found < cumulative.shape[1], found, 0).tolist()


def distribution(logits: torch.Tensor, params: DrawParams) -> torch.Tensor:
    """Return what each row draws from, float64 ``(num_rows, vocab_size)``, not renormalised.

    Args:
        logits: float32 ``(num_rows, vocab_size)``.
        params: How to draw.
    """
    temperature = torch.tensor(
        params.temperature, dtype=torch.float32, device=logits.device
    ).clamp_min(torch.finfo(torch.float32).tiny)
    # Distances to the best are never positive: however small the temperature, the best is exp(0).
    distances = logits - logits.amax(dim=-1, keepdim=True)
    probs = torch.softmax(distances / temperature.unsqueeze(1), dim=-1).double()
    filters = zip(params.min_p, params.top_k, params.top_p, strict=True)
    for row, (min_p, top_k, top_p) in zip(probs, filters, strict=True):
        _filter_row(row, min_p, top_k, top_p)
    return probs


def _filter_row(probs: torch.Tensor, min_p: float, top_k: int, top_p: float) -> None:
    """Zero what the filters drop from one row ``(vocab_size,)``, in place."""
    if min_p > 0:
        probs.masked_fill_(probs < min_p * probs.max(), 0.0)
    if 0 < top_k < probs.shape[0]:
        _keep_best(probs, top_k)
    if top_p < 1.0:
        _keep_mass(probs, top_p)


def _keep_best(probs: torch.Tensor, count: int) -> None:
    """Keep exactly ``count`` tokens: of equals the lowest ids."""
    threshold = probs.topk(count).values[-1]
    above = probs > threshold
    ties = (probs == threshold).nonzero().squeeze(1)
    keep = above.clone()
    keep[ties[: count - int(above.sum())]] = True
    probs.masked_fill_(~keep, 0.0)


def _keep_mass(probs: torch.Tensor, share: float) -> None:
    """Keep the smallest set of most likely tokens that reaches ``share`` of the mass left."""
    target, size = share * probs.sum(), probs.shape[0]
    mass = probs.topk(min(_CANDIDATES, size)).values.cumsum(0)
    if mass[-1] < target:
        mass = probs.sort(descending=True).values.cumsum(0)
    _keep_best(probs, min(int((mass < target).sum()) + 1, size))


IMPLEMENTATIONS = [
    Implementation("cpu", cpu.load_draw_tokens, cpu.why_not_float),
    Implementation("reference", lambda: draw_tokens),
]
