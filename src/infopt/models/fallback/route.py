"""Decides how a checkpoint runs: natively, or through transformers' own modules.

The native decoder is taken wherever it can compute the family. What it refuses by name runs through
transformers if transformers knows a decoder of that kind; the refusal is kept as the reason.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from infopt.errors import UnsupportedModelError
from infopt.models.checkpoint import find_checkpoint
from infopt.models.hf_config import hf_config, read_json
from infopt.models.quiet import quiet_transformers

ALIASES = {"kimi_k2": "deepseek_v3"}
"""``model_type`` of files -> what transformers calls the same architecture."""


@dataclass(frozen=True, slots=True)
class Route:
    """A checkpoint that transformers runs.

    Attributes:
        folder: Where it is.
        raw: Content of ``config.json``, aliases resolved.
        reason: Why the native decoder does not run it.
    """

    folder: Path
    raw: dict[str, Any]
    reason: str


def find_route(path: Path) -> Route | None:
    """Return how transformers runs a checkpoint; None if the native decoder does.

    Args:
        path: Checkpoint folder or GGUF file.

    Raises:
        UnsupportedModelError: If neither can: the native decoder's refusal.
        InfoptError: For a path that leads to no checkpoint.
    """
    folder, kind = find_checkpoint(path)
    if kind == "gguf":
        return None
    raw = read_json(folder / "config.json")
    try:
        hf_config(raw)
    except UnsupportedModelError as refusal:
        raw = resolve_aliases(raw)
        if not is_known(raw):
            raise
        return Route(folder, raw, refusal.message)
    return None


def resolve_aliases(raw: Mapping[str, Any]) -> dict[str, Any]:
    """Return a configuration whose ``model_type`` is one of transformers' own, where it has one."""
    name = str(raw.get("model_type"))
    return {**raw, "model_type": ALIASES.get(name, name)}


def is_known(raw: Mapping[str, Any]) -> bool:
    """Whether transformers has a decoder of text for a configuration."""
    with quiet_transformers():
        from transformers.models.auto.modeling_auto import (
            MODEL_FOR_CAUSAL_LM_MAPPING_NAMES as TEXT,
        )
        from transformers.models.auto.modeling_auto import (
            MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES as VISION,
        )
    name = raw.get("model_type")
    part = raw.get("text_config")
    return name in TEXT or (name in VISION and isinstance(part, dict))
