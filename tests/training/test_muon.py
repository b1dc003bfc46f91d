"""Updates are orthogonal, stacks are matrices side by side, and it minimises."""

from __future__ import annotations

import pytest
import torch

from infopt.training.muon import Muon, orthogonalize


@pytest.mark.parametrize("shape", [(48, 48), (96, 32), (32, 96), (3, 40, 64)])
def test_singular_values_come_close_to_one(shape: tuple[int, ...]) -> None:
    generator = torch.Generator().manual_seed(0)
    matrix = torch.randn(shape, generator=generator)
    values = torch.linalg.svdvals(orthogonalize(matrix))
    assert values.min() > 0.5
    assert values.max() < 1.3


def test_directions_stay() -> None:
    """The result is the input with other singular values, not some orthogonal matrix."""
    matrix = torch.randn(32, 64, generator=torch.Generator().manual_seed(1))
    u, _, vh = torch.linalg.svd(matrix, full_matrices=False)
    within = u.T @ orthogonalize(matrix) @ vh.T
    off_diagonal = within - torch.diag(within.diagonal())
    assert within.diagonal().min() > 0.5
    assert off_diagonal.abs().max() < 0.1


def test_a_gradient_of_zeros_changes_nothing() -> None:
    weight = torch.nn.Parameter(torch.ones(4, 4))
    weight.grad = torch.zeros(4, 4)
    Muon([weight], lr=0.1).step()
    assert torch.equal(weight, torch.ones(4, 4))


def test_a_stack_is_updated_like_its_matrices() -> None:
    start = torch.randn(3, 64, 32, generator=torch.Generator().manual_seed(2))
    gradient = torch.randn(3, 64, 32, generator=torch.Generator().manual_seed(3))
    stack = torch.nn.Parameter(start.clone())
    single = [torch.nn.Parameter(matrix.clone()) for matrix in start]
    stack.grad = gradient.clone()
    for parameter, values in zip(single, gradient, strict=True):
        parameter.grad = values.clone()
    Muon([stack], lr=0.1, weight_decay=0.1).step()
    Muon(single, lr=0.1, weight_decay=0.1).step()
    torch.testing.assert_close(stack.data, torch.stack([p.data for p in single]), rtol=0, atol=3e-3)


def test_weight_decay_is_decoupled() -> None:
    plain, decayed = (torch.nn.Parameter(torch.ones(4, 4)) for _ in range(2))
    plain.grad, decayed.grad = torch.eye(4), torch.eye(4)
    Muon([plain], lr=0.1).step()
    Muon([decayed], lr=0.1, weight_decay=0.5).step()
    torch.testing.assert_close(plain.data - decayed.data, torch.full((4, 4), 0.05))


def test_it_finds_a_minimum() -> None:
    target = torch.randn(16, 16, generator=torch.Generator().manual_seed(4))
    weight = torch.nn.Parameter(torch.zeros(16, 16))
    optimizer = Muon([weight], lr=0.2, momentum=0.8)
    for step in range(200):
        optimizer.param_groups[0]["lr"] = 0.2 * (1 - step / 200)
        optimizer.zero_grad()
        (weight - target).square().sum().backward()
        optimizer.step()
    assert (weight - target).norm() < 0.05 * target.norm()
