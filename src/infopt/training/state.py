"""The state of a training that has not ended, in one file that is never half-written."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, NamedTuple

import torch

from infopt.errors import CheckpointError, ConfigError


class TrainingState(NamedTuple):
    """Everything a training needs to go on.

    Attributes:
        settings: Recipe, seed and number of steps.
        model: Weights by name.
        optimizers: State of each optimizer.
        curve: Points of the loss curve as plain tuples.
    """

    settings: dict[str, Any]
    model: dict[str, torch.Tensor]
    optimizers: list[dict[str, Any]]
    curve: list[tuple[Any, ...]]


def save_state(path: Path, state: TrainingState) -> None:
    """Write a state; an interruption leaves the one before in place."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    torch.save(state._asdict(), temporary)
    temporary.replace(path)


def load_state(path: Path, settings: dict[str, Any]) -> TrainingState:
    """Read a state.

    Args:
        path: The file.
        settings: What the training is about to do.

    Raises:
        CheckpointError: If the file cannot be read.
        ConfigError: If it is from a training with other settings.
    """
    try:
        state = TrainingState(**torch.load(path, weights_only=True))
    except Exception as error:  # torch raises many types for a damaged file
        raise CheckpointError(
            f"{path} holds no state of a training: {error}",
            field="out",
            value=str(path),
            remedy="Remove it to begin anew.",
        ) from error
    if state.settings != settings:
        raise ConfigError(
            f"{path} is from a training with another recipe, seed or number of steps.",
            field="out",
            value=str(path),
            remedy="Remove it to begin anew, or give the settings it was made with.",
        )
    return state
