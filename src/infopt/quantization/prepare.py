"""Checkpoints that a scheme needs before a model can be loaded: calibrated once, then cached."""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from filelock import FileLock

from infopt import corpus
from infopt.errors import ConfigError
from infopt.models.checkpoint import Checkpoint, open_checkpoint
from infopt.quantization.calibration import CalibrationSet
from infopt.quantization.names import Recipe, parse
from infopt.quantization.scheme import check_name, is_coded
from infopt.user_cache import cache_dir

logger = logging.getLogger(__name__)

_VERSION = 2
"""Raised when the same scheme and text give other codes than before."""


def prepare_checkpoint(
    scheme: str, checkpoint: Checkpoint, calibration: Mapping[str, Any] | None
) -> Checkpoint:
    """Return the checkpoint to load for a scheme: the given one, or its quantized form.

    Schemes that need calibration are quantized into the user's cache folder on first use, with a
    progress bar; the cache is keyed by the model's content, the scheme and the text.

    Args:
        scheme: Name of the scheme.
        checkpoint: Float weights, or weights that are coded already.
        calibration: Options of `CalibrationSet`.

    Raises:
        ConfigError: Unknown scheme or option, or calibration for a scheme that needs none.
    """
    check_name(scheme)
    chosen = CalibrationSet.from_dict(calibration)
    recipe = parse(scheme)
    if recipe is None or not recipe.needs_calibration or is_coded(checkpoint):
        if calibration is not None:
            raise ConfigError(
                f"quantization={scheme!r} needs no calibration.",
                field="calibration",
                value=dict(calibration),
                remedy="Leave calibration out.",
            )
        return checkpoint
    folder = quantized_folder(checkpoint, recipe, chosen)
    checkpoint.close()
    return open_checkpoint(folder)


def quantized_folder(checkpoint: Checkpoint, recipe: Recipe, calibration: CalibrationSet) -> Path:
    """Return the cached folder of a quantized checkpoint, made if it is not there."""
    from infopt.quantization.quantize import quantize_checkpoint, show_bars

    folder = cache_dir() / "quantized" / _folder_name(checkpoint, recipe, calibration)
    if folder.exists():
        return folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(folder.with_suffix(".lock")):
        if not folder.exists():  # another process may have made it meanwhile
            logger.info("quantizing %s to %s", checkpoint.path.name, recipe.name)
            quantize_checkpoint(checkpoint, recipe, folder, calibration, show_bars)
    return folder


def _folder_name(checkpoint: Checkpoint, recipe: Recipe, calibration: CalibrationSet) -> str:
    texts = [corpus.content_hash(kind, "train") for kind in ("docs", "code")]
    parts = [checkpoint.identity, recipe.name, calibration.to_dict(), texts, _VERSION]
    digest = hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()
    return f"{checkpoint.path.stem}-{recipe.name}-{digest[:16]}"
