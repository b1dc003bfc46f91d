"""What is minimised: cross-entropy, and for experts the two losses that keep routing healthy.

With f_i the share of a layer's assignments that went to expert i of E, and P_i the mean probability
the router gave it::

    balance = E * sum_i f_i P_i          1 when all experts get the same
    z       = mean over tokens of logsumexp(router logits)^2
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F


def token_loss(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Return the mean -log p in nats.

    Args:
        logits: Shape (num_rows, num_tokens, vocab_size).
        targets: Ids, shape (num_rows, num_tokens).
    """
    return F.cross_entropy(logits.flatten(0, 1).float(), targets.flatten())


def balance_loss(router_logits: torch.Tensor, top_k: int) -> torch.Tensor:
    """Return the balance loss of one layer; its gradient flows through the probabilities.

    Args:
        router_logits: Shape (num_tokens, num_experts).
        top_k: Experts that each token goes to.
    """
    probabilities = router_logits.float().softmax(dim=-1)
    share = expert_shares(router_logits, top_k)
    return router_logits.shape[-1] * (share * probabilities.mean(dim=0)).sum()


def expert_shares(router_logits: torch.Tensor, top_k: int) -> torch.Tensor:
    """Return the share of assignments per expert, shape (num_experts,); they sum to 1."""
    num_experts = router_logits.shape[-1]
    chosen = router_logits.topk(top_k, dim=-1).indices.flatten()
    return torch.bincount(chosen, minlength=num_experts).float() / chosen.numel()


def z_loss(router_logits: torch.Tensor) -> torch.Tensor:
    """Return the z loss of one layer.

    Args:
        router_logits: Shape (num_tokens, num_experts).
    """
    return router_logits.float().logsumexp(dim=-1).square().mean()


def router_loss(
    router_logits: Sequence[torch.Tensor], top_k: int, *, balance_weight: float, z_weight: float
) -> torch.Tensor:
    """Return the weighted mean of both losses over the layers that have experts."""
    losses = [
        balance_weight * balance_loss(logits, top_k) + z_weight * z_loss(logits)
        for logits in router_logits
    ]
    return torch.stack(losses).mean()
