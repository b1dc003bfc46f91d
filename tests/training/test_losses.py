"""Balanced routing costs 1, collapsed routing costs as much as it wastes, gradients repair it."""

from __future__ import annotations

import math

import pytest
import torch

from infopt.training.losses import balance_loss, expert_shares, router_loss, token_loss, z_loss

NUM_EXPERTS, TOP_K = 8, 2


def balanced_logits() -> torch.Tensor:
    """Every pair of neighbouring experts has the same number of tokens."""
    rows = [torch.zeros(NUM_EXPERTS) for _ in range(NUM_EXPERTS)]
    for i, row in enumerate(rows):
        row[[i, (i + 1) % NUM_EXPERTS]] = 3.0
    return torch.stack(rows)


def test_balanced_routing_costs_one() -> None:
    assert balance_loss(balanced_logits(), TOP_K).item() == pytest.approx(1)
    shares = expert_shares(balanced_logits(), TOP_K)
    torch.testing.assert_close(shares, torch.full((NUM_EXPERTS,), 1 / NUM_EXPERTS))


def test_collapsed_routing_costs_experts_over_k() -> None:
    """All tokens at two of eight experts, each with half of the probability: 8 / 2."""
    logits = torch.full((10, NUM_EXPERTS), -50.0)
    logits[:, :TOP_K] = 0.0
    assert balance_loss(logits, TOP_K).item() == pytest.approx(NUM_EXPERTS / TOP_K)
    assert expert_shares(logits, TOP_K).tolist() == [0.5, 0.5, *[0.0] * 6]


def test_its_gradient_spreads_the_load() -> None:
    bias = torch.tensor([1.0, 0.8, *[0.0] * 6], requires_grad=True)
    noise = 0.3 * torch.randn(256, NUM_EXPERTS, generator=torch.Generator().manual_seed(0))
    before = balance_loss(noise + bias, TOP_K).item()
    for _ in range(50):
        (gradient,) = torch.autograd.grad(balance_loss(noise + bias, TOP_K), bias)
        bias = (bias - gradient).detach().requires_grad_()
    assert before > 1.5
    assert balance_loss(noise + bias, TOP_K).item() < 1.1


def test_z_loss_is_the_squared_log_of_the_normaliser() -> None:
    logits = torch.zeros(5, NUM_EXPERTS)
    assert z_loss(logits).item() == pytest.approx(math.log(NUM_EXPERTS) ** 2)
    assert z_loss(logits + 10).item() > z_loss(logits).item()


def test_router_loss_is_the_weighted_mean_over_layers() -> None:
    layers = [balanced_logits(), torch.zeros(4, NUM_EXPERTS)]
    value = router_loss(layers, TOP_K, balance_weight=0.5, z_weight=0.25)
    parts = [0.5 * balance_loss(x, TOP_K) + 0.25 * z_loss(x) for x in layers]
    torch.testing.assert_close(value, sum(parts) / 2)


def test_token_loss_is_the_mean_over_all_tokens() -> None:
    logits = torch.randn(2, 3, 7, generator=torch.Generator().manual_seed(1))
    targets = torch.tensor([[0, 1, 2], [3, 4, 5]])
    picked = logits.log_softmax(-1).gather(-1, targets[..., None])
    torch.testing.assert_close(token_loss(logits, targets), -picked.mean())
