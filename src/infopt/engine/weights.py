"""Opens a model and loads its decoder: what an engine and a draft model have in common."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from infopt.config import EngineConfig
from infopt.engine.limits import limited_length
from infopt.models.checkpoint import Checkpoint, open_checkpoint
from infopt.models.decoder import Decoder
from infopt.models.embedding import Embedding
from infopt.models.registry import resolve_model
from infopt.models.tokenizer import Tokenizer
from infopt.ops import OpSet

Progress = Callable[[Sequence[int]], Sequence[int]]


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """A decoder and what its checkpoint says.

    Attributes:
        model: The decoder.
        tokenizer: None where it was not asked for.
        identity: Identity of the weights.
        quantization: What each layer became, as plain data.
        max_model_len: Longest prompt and output.
    """

    model: Decoder
    tokenizer: Tokenizer | None
    identity: str
    quantization: dict[str, Any]
    max_model_len: int


def load_model(
    config: EngineConfig,
    ops: OpSet,
    device: torch.device,
    dtype: torch.dtype,
    progress: Progress = lambda layers: layers,
) -> LoadedModel:
    """Load what a config names.

    Args:
        config: Model, quantization, longest length, and whether a tokenizer is wanted.
        ops: Resolved ops.
        device: Where to run.
        dtype: Compute type.
        progress: Wraps the sequence of layer indices.

    Raises:
        InfoptError: For anything that cannot be had here.
    """
    with _checkpoint(config) as checkpoint:
        max_model_len = limited_length(config, checkpoint.config.max_position_embeddings)
        scheme = _scheme(config.quantization, checkpoint, ops, device, dtype)
        model = Decoder(
            checkpoint.config,
            checkpoint,
            ops,
            device=device,
            dtype=dtype,
            max_positions=max_model_len,
            make_linear=scheme,
            embedding=_embedding(checkpoint, device, dtype),
            progress=progress,
        )
        tokenizer = None if config.skip_tokenizer_init else checkpoint.tokenizer()
        report = scheme.report.to_dict()
        return LoadedModel(model, tokenizer, checkpoint.identity, report, max_model_len)


def _checkpoint(config: EngineConfig) -> Checkpoint:
    """Open the model, in the form that the quantization scheme needs."""
    quantization = importlib.import_module("infopt.quantization")
    checkpoint = open_checkpoint(resolve_model(config.model))
    return quantization.prepare_checkpoint(config.quantization, checkpoint, config.calibration)


def _scheme(
    name: str, checkpoint: Checkpoint, ops: OpSet, device: torch.device, dtype: torch.dtype
) -> Any:
    """Return the quantization scheme; found by name, so that imports point one way."""
    quantization = importlib.import_module("infopt.quantization")
    return quantization.make_scheme(name, checkpoint, ops, device, dtype)


def _embedding(
    checkpoint: Checkpoint, device: torch.device, dtype: torch.dtype
) -> Embedding | None:
    """Return the embedding of a checkpoint that holds codes of it; found by name, as schemes."""
    quantization = importlib.import_module("infopt.quantization")
    return quantization.stored_embedding(checkpoint, device, dtype)
