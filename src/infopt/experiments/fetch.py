"""Stage `models`: have the model here, checked, and say what it is."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from infopt.experiments.random_model import write_random_model
from infopt.experiments.spec import RANDOM_MODEL, model_name
from infopt.llm import LLM
from infopt.models.checkpoint import open_checkpoint
from infopt.models.registry import load_registry_file, resolve_model
from infopt.sampling_params import SamplingParams


def fetch(model: str, results_dir: str | Path, models_file: str | None = None) -> dict[str, Any]:
    """Fetch a model if it is not here, try it, and return what it is, as plain data.

    It is loaded once: a model that cannot run is found out before hours of measuring, and kernels
    that are compiled on first use are compiled here and not inside somebody's measurement.

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
    ops = _try(name)
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
            "ops": ops,
            "duration_s": round(time.perf_counter() - start_s, 3),
        }


def _try(model: str) -> dict[str, Any]:
    """Generate a token in each precision the CPU pipeline uses; return the backends by dtype."""
    ops = {}
    for dtype in ("auto", "float32"):
        with LLM(model, dtype=dtype, max_model_len=64, num_kv_pages=8, max_num_seqs=1) as llm:
            llm.generate([[1, 2, 3]], SamplingParams(temperature=0, max_tokens=2), use_tqdm=False)
            stats = llm.stats()
            ops[stats["dtype"]] = {op: choice["backend"] for op, choice in stats["ops"].items()}
    return ops
