"""Who reads which quantized checkpoint: ``quant_method`` -> reader."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Any

from infopt.errors import UnsupportedModelError, nearest
from infopt.models.packed import PackedReader

READERS = {
    "compressed-tensors": ("compressed_layers", "CompressedTensorsReader"),
    "awq": ("awq_format", "AWQReader"),
    "gptq": ("gptq_format", "GPTQReader"),
}
"""Module in this package and class."""


def make_reader(settings: Mapping[str, Any]) -> PackedReader:
    """Return the reader for a ``quantization_config``.

    Raises:
        UnsupportedModelError: Names the method or setting that is not supported.
        DependencyError: If a package it needs is missing.
    """
    method = settings.get("quant_method")
    if not isinstance(method, str) or method not in READERS:
        raise UnsupportedModelError(
            f"Weights quantized with quant_method={method!r} cannot be read."
            f"{nearest(str(method), READERS)}",
            field="quant_method",
            value=method,
            remedy=f"Methods that can: {', '.join(READERS)}.",
        )
    module, name = READERS[method]
    return getattr(importlib.import_module(f"infopt.quantization.{module}"), name)(settings)
