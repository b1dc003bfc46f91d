"""What a quantization scheme is, and how one is found."""

from __future__ import annotations

import importlib
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch

from infopt.models.checkpoint import Checkpoint
from infopt.models.linear_source import LinearSource
from infopt.ops import OpSet
from infopt.ops.linear import Linear
from infopt.registry import Registry


@dataclass(slots=True)
class SchemeReport:
    """What a scheme did to a model.

    Attributes:
        scheme: Its name.
        formats: Number of layers by the format they got, such as ``q4_1`` or ``bfloat16``.
        backend: Which kernels multiply: ``cpu``, ``reference``, ...
        reason: Why not a faster one.
    """

    scheme: str
    formats: Counter[str] = field(default_factory=Counter)
    backend: str = "reference"
    reason: str = "preferred"

    def to_dict(self) -> dict[str, Any]:
        """Return plain data for records."""
        return {
            "scheme": self.scheme,
            "formats": dict(self.formats),
            "backend": self.backend,
            "reason": self.reason,
        }


class Scheme(Protocol):
    """Makes the layers of one model and reports what they became."""

    report: SchemeReport

    def __call__(self, source: LinearSource) -> Linear:
        """Make a layer."""
        ...


SchemeMaker = Callable[[Checkpoint, OpSet, torch.device, torch.dtype], Scheme]
"""Prepares a scheme for a checkpoint.

Raises:
    ConfigError: If the scheme cannot be had for this checkpoint, device or type.
"""

SCHEMES: Registry[SchemeMaker] = Registry("quantization")


class DenseScheme:
    """Scheme ``none``: the float weights as they are."""

    def __init__(self, checkpoint: Checkpoint, ops: OpSet, device: Any, dtype: torch.dtype) -> None:
        """Multiply with the op of the model's type."""
        del checkpoint, device
        choice = ops.choices["linear"]
        self.report = SchemeReport("none", backend=choice.backend, reason=choice.reason)
        self._ops, self._format = ops, str(dtype).removeprefix("torch.")

    def __call__(self, source: LinearSource) -> Linear:
        """Make a layer."""
        self.report.formats[self._format] += 1
        return self._ops.linear(source.weight(), source.bias())


SCHEMES.register("none")(DenseScheme)


def make_scheme(
    name: str, checkpoint: Checkpoint, ops: OpSet, device: torch.device, dtype: torch.dtype
) -> Scheme:
    """Return a scheme by name, ready for a checkpoint.

    Raises:
        ConfigError: Unknown name, or the scheme does not fit.
    """
    importlib.import_module("infopt.quantization.stored")
    return SCHEMES.get(name)(checkpoint, ops, device, dtype)
