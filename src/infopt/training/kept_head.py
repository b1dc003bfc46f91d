"""Draft heads that are trained once, and kept in the cache folder by what they came from."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import logging
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from infopt.config import EngineConfig
from infopt.models.registry import load_registry_file
from infopt.results import read_json
from infopt.training.head import HeadRecipe, train_head
from infopt.user_cache import cache_dir

logger = logging.getLogger(__name__)


def train(
    description: Mapping[str, Any],
    minutes: float,
    *,
    models_file: str | None = None,
    num_threads: int | None = None,
) -> dict[str, Any]:
    """Train the head of a model, unless there is one already, and say where it is.

    Args:
        description: Of the model, as stage ``models`` wrote it.
        minutes: Time for texts and learning together.
        models_file: File with further registry entries.
        num_threads: Compute threads.

    Raises:
        InfoptError: The model cannot be had, or wrote too little text to learn from.
    """
    if models_file:
        load_registry_file(models_file)
    recipe = HeadRecipe(minutes=minutes)
    facts = {"model": description["identity"], "recipe": dataclasses.asdict(recipe)}
    name = hashlib.sha256(json.dumps(facts, sort_keys=True).encode() + _code()).hexdigest()[:24]
    folder = cache_dir() / "draft_heads" / name
    if not folder.is_dir():
        config = EngineConfig(
            description["model"],
            max_num_seqs=64,
            max_num_batched_tokens=1024,
            num_threads=num_threads,
        )
        partial = folder.with_suffix(".partial")
        shutil.rmtree(partial, ignore_errors=True)
        train_head(config, partial, recipe, show_progress=False)
        partial.rename(folder)
    record = read_json(folder / "training.json")
    logger.info("draft head: %.2f tokens per pass", record["best"]["tokens_per_pass"])
    return {"folder": str(folder), **facts, "training": record}


def _code() -> bytes:
    """Return the code that trains heads: another one makes another head."""
    files = sorted(Path(__file__).parent.glob("head*.py"))
    return b"".join(file.read_bytes() for file in files)
