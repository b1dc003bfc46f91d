"""Router of a mixture of experts: the best k of each token, and their weights.

    scores = softmax(logits) or sigmoid(logits);  chosen = the k largest of scores + bias
    weights = scores[chosen], made to sum to 1 where asked for, times a factor

The bias balances the load without a loss (arXiv 2408.15664), so it decides who is chosen but does
not weigh. With groups, only the experts of the best groups can be chosen (arXiv 2412.19437). Ties
go to the lowest id, which torch's own ``topk`` does not promise.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch

from infopt.ops import cpu, gpu
from infopt.ops.dispatch import Implementation

Scoring = Literal["softmax", "sigmoid"]

_SMALLEST_SUM = 1e-20  # sigmoids can all vanish; DeepSeek's own code adds the same


@dataclass(frozen=True, slots=True)
class Routing:
    """How a layer chooses.

    Attributes:
        top_k: Experts per token.
        scoring: ``softmax`` over all experts, or a ``sigmoid`` of each.
        renormalize: Weights of a token sum to 1 (before the factor).
        num_groups: Groups of consecutive experts.
        top_groups: Groups that a token's experts may come from.
        best_two: A group is worth the sum of its best two experts, not its best one.
        factor: On the weights.
    """

    top_k: int
    scoring: Scoring = "softmax"
    renormalize: bool = True
    num_groups: int = 1
    top_groups: int = 1
    best_two: bool = False
    factor: float = 1.0


def route(
    logits: torch.Tensor, bias: torch.Tensor | None, routing: Routing
) -> tuple[torch.Tensor, torch.Tensor]:
    """Choose experts.

    Args:
        logits: ``(num_tokens, num_experts)``.
        bias: float32 ``(num_experts,)`` added to the scores for the choice alone, or None.
        routing: How to choose.

    Returns:
        int64 ids ``(num_tokens, top_k)``, best first, and their float32 weights. The bits of a row
        depend on its logits alone.
    """
    logits = logits.float()
    scores = sigmoid(logits) if routing.scoring == "sigmoid" else logits.softmax(-1)
    choice = scores if bias is None else scores + bias
    if routing.num_groups > 1:
        choice = _keep_best_groups(choice, routing)
    ids = _largest(choice, routing.top_k)
    weights = scores.gather(1, ids)
    if routing.renormalize:
        weights = weights / (_row_sums(weights) + _SMALLEST_SUM)
    return ids, weights * routing.factor


def sigmoid(x: torch.Tensor) -> torch.Tensor:
    """Return the sigmoid of each value, with bits that depend on that value alone.

    torch's own takes other instructions at the end of a tensor than inside it. Its softmax goes row
    by row, and that of (x, 0) begins with the sigmoid of x.
    """
    return torch.stack((x, torch.zeros_like(x)), dim=-1).softmax(-1)[..., 0]


def _keep_best_groups(choice: torch.Tensor, routing: Routing) -> torch.Tensor:
    """Set the experts outside the best groups to minus infinity."""
    by_group = choice.unflatten(1, (routing.num_groups, -1))
    best = by_group.sort(-1, descending=True).values
    worth = best[..., 0] + best[..., 1] if routing.best_two else best[..., 0]
    kept = torch.zeros_like(worth, dtype=torch.bool)
    kept.scatter_(1, _largest(worth, routing.top_groups), value=True)
    return by_group.masked_fill(~kept.unsqueeze(-1), float("-inf")).flatten(1)


def _largest(values: torch.Tensor, count: int) -> torch.Tensor:
    """Return the places of the largest values of each row; equal ones in the order of places."""
    return values.sort(stable=True, dim=-1, descending=True).indices[:, :count]


def _row_sums(weights: torch.Tensor) -> torch.Tensor:
    """Add up from left to right: torch's own sum has an order for each shape."""
    total = weights[:, :1]
    for place in range(1, weights.shape[1]):
        total = total + weights[:, place : place + 1]
    return total


IMPLEMENTATIONS = [
    Implementation("cpu", cpu.load_route, cpu.why_not),
    Implementation("triton", gpu.load_route, gpu.why_not),
    Implementation("reference", lambda: route),
]
