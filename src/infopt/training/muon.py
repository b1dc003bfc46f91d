"""Muon: momentum whose every update is made orthogonal, for the hidden matrices.

The momentum matrix M is replaced by the nearest matrix with all singular values near 1, found
without a decomposition: each step of ::

    X <- a X + b (X X^T) X + c (X X^T)^2 X      (a, b, c) = (3.4445, -4.7750, 2.0315)

maps the singular values of X, which begin between 0 and 1, closer to 1. Directions with a small
gradient learn as fast as those with a large one. From Jordan et al., "Muon: an optimizer for hidden
layers in neural networks", 2024. PyTorch's own takes single matrices; experts come stacked.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch

_COEFFICIENTS = (3.4445, -4.7750, 2.0315)
_NUM_ITERATIONS = 5


class Muon(torch.optim.Optimizer):
    """Optimizer of matrices, or of stacks of matrices (the last two dimensions).

    Args:
        params: Parameters with at least two dimensions.
        lr: Largest singular value of an update of a square matrix.
        momentum: Decay of the running gradient.
        weight_decay: Decoupled decay, per unit of learning rate.
    """

    def __init__(
        self,
        params: Iterable[torch.nn.Parameter],
        *,
        lr: float,
        momentum: float = 0.95,
        weight_decay: float = 0.0,
    ) -> None:
        """Keep the settings; buffers are made in the first step."""
        defaults = {"lr": lr, "momentum": momentum, "weight_decay": weight_decay}
        super().__init__(params, defaults)

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Update every parameter that has a gradient (``closure`` is not used)."""
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    self._update(parameter, parameter.grad, group)

    def _update(
        self, parameter: torch.Tensor, gradient: torch.Tensor, group: dict[str, Any]
    ) -> None:
        state = self.state[parameter]
        if not state:
            state["momentum"] = torch.zeros_like(parameter)
        running = state["momentum"].mul_(group["momentum"]).add_(gradient)
        update = orthogonalize(gradient.add(running, alpha=group["momentum"]))
        num_rows, num_columns = parameter.shape[-2:]
        # A tall matrix changes its output's scale as a square one does.
        scale = max(1.0, num_rows / num_columns) ** 0.5
        parameter.mul_(1 - group["lr"] * group["weight_decay"])
        parameter.add_(update, alpha=-group["lr"] * scale)


def orthogonalize(matrix: torch.Tensor) -> torch.Tensor:
    """Return nearly orthogonal matrices that point the same way.

    Args:
        matrix: Shape (..., num_rows, num_columns).

    Returns:
        The same shape and type, singular values between about 0.7 and 1.2.
    """
    tall = matrix.shape[-2] > matrix.shape[-1]
    x = matrix.mT if tall else matrix  # the smaller product X X^T
    x = (x / x.norm(dim=(-2, -1), keepdim=True).clamp_min(1e-7)).bfloat16()
    a, b, c = _COEFFICIENTS
    for _ in range(_NUM_ITERATIONS):
        gram = x @ x.mT
        x = a * x + (b * gram + c * (gram @ gram)) @ x
    return (x.mT if tall else x).to(matrix.dtype)
