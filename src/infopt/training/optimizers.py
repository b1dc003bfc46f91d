"""Which optimizer gets which weights, and how the learning rate moves."""

from __future__ import annotations

import torch

from infopt.training.muon import Muon
from infopt.training.recipes import Recipe

_MIN_MATRIX_ROWS = 32  # routers and gates are a few vectors, not a matrix


def make_optimizers(model: torch.nn.Module, recipe: Recipe) -> list[torch.optim.Optimizer]:
    """Return Muon for the hidden matrices and AdamW for embedding, norms and routers."""
    matrices, vectors = [], []
    for name, parameter in model.named_parameters():
        hidden = parameter.ndim >= 2 and "embed_tokens" not in name
        is_matrix = hidden and min(parameter.shape[-2:]) >= _MIN_MATRIX_ROWS
        (matrices if is_matrix else vectors).append(parameter)
    return [
        Muon(matrices, lr=recipe.matrix_rate, weight_decay=recipe.weight_decay),
        torch.optim.AdamW(vectors, lr=recipe.vector_rate, betas=(0.9, 0.95), weight_decay=0.0),
    ]


def rate_factor(recipe: Recipe, step: int, num_steps: int) -> float:
    """Return the share of the full learning rate at a step: rise, plateau, fall to 0.

    Args:
        recipe: Says how long rise and fall take.
        step: From 0 to ``num_steps - 1``.
        num_steps: All steps.
    """
    rise = (step + 1) / max(1.0, recipe.warmup_share * num_steps)
    fall = (num_steps - step) / max(1.0, recipe.decay_share * num_steps)
    return min(1.0, rise, fall)
