"""The seam for checkpoints whose weights are codes.

A checkpoint knows files, names and shapes; what a group of packed tensors stands for is known to
`infopt.quantization`, which is found by name, so that imports point one way.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Any, NamedTuple, Protocol

import torch


class StoredTensor(NamedTuple):
    """What a file's header says of a tensor.

    Attributes:
        dtype: Type as safetensors names it: ``F16``, ``I32``, ``F8_E4M3``, ...
        shape: Its shape.
    """

    dtype: str
    shape: tuple[int, ...]


class CodedTensor(Protocol):
    """Codes with what they stand for (`infopt.quantization.coded.CodedWeight`)."""

    def dequantize(self, dtype: torch.dtype = ...) -> torch.Tensor:
        """Return the weight, ``(out_features, in_features)``."""
        ...


class PackedReader(Protocol):
    """Reads the layers of a checkpoint that a ``quantization_config`` describes.

    Attributes:
        parts: Last parts of the names of tensors that only packed layers have (``qweight``, ...).
    """

    parts: frozenset[str]

    def is_coded(
        self, layer: str, shape: tuple[int, int], found: Mapping[str, StoredTensor]
    ) -> bool:
        """Tell from the headers whether a layer is coded, and check it if it is.

        Args:
            layer: Name of the layer in the file.
            shape: ``(out_features, in_features)`` that the architecture demands.
            found: The tensors of the layer by the last part of their names, ``weight`` included.

        Raises:
            CheckpointError: Names the tensor that is missing, misshapen or not expected.
            UnsupportedModelError: Names the setting that is not supported.
        """
        ...

    def read(
        self, layer: str, shape: tuple[int, int], tensors: Mapping[str, torch.Tensor]
    ) -> CodedTensor:
        """Return the codes of a layer.

        Args:
            layer: Name of the layer in the file.
            shape: ``(out_features, in_features)``.
            tensors: The tensors that `is_coded` has seen.

        Raises:
            CheckpointError: Names the layer and what is wrong with its values.
        """
        ...


def packed_reader(settings: Mapping[str, Any]) -> PackedReader:
    """Return the reader for a ``quantization_config``.

    Raises:
        UnsupportedModelError: Names the method or setting that is not supported.
    """
    return importlib.import_module("infopt.quantization.readers").make_reader(settings)
