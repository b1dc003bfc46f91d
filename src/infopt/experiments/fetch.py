"""Stage `models`: have the model here, checked, and say what it is."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from infopt.experiments.random_model import write_random_model
from infopt.experiments.spec import RANDOM_MODEL, model_name
from infopt.models.checkpoint import open_checkpoint
from infopt.models.registry import load_registry_file, resolve_model


def fetch(model: str, results_dir: str | Path, models_file: str | None = None) -> dict[str, Any]:
    """Fetch a model if it is not here and return what it is, as plain data.

    Args:
        model: As in the configuration.
        results_dir: Where ``random`` is made.
        models_file: File with further registry entries.

    Raises:
        InfoptError: Unknown model, failed download, wrong checksum, unsupported architecture.
    """
    start_s = time.perf_counter()
    if models_file:
        load_registry_file(models_file)
    name = model_name(model, results_dir)
    if model == RANDOM_MODEL:
        write_random_model(name)
    resolved = resolve_model(name)
    with open_checkpoint(resolved) as checkpoint:
        config = checkpoint.config
        return {
            "model": name,
            "slug": resolved.slug,
            "path": str(resolved.path),
            "format": resolved.format,
            "identity": resolved.identity,
            "licence": resolved.licence,
            "stored_dtype": resolved.stored_dtype,
            "family": config.family,
            "num_parameters": config.num_parameters,
            "num_layers": config.num_layers,
            "vocab_size": config.vocab_size,
            "max_position_embeddings": config.max_position_embeddings,
            "duration_s": round(time.perf_counter() - start_s, 3),
        }
