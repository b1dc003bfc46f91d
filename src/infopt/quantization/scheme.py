"""What a quantization scheme is, and how one is found."""

from __future__ import annotations

import importlib
import logging
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch

from infopt.errors import ConfigError, nearest
from infopt.models.checkpoint import Checkpoint
from infopt.models.config import ModelConfig
from infopt.models.linear_source import LinearSource
from infopt.ops import OpSet
from infopt.ops.linear import Linear
from infopt.quantization.names import EXAMPLES, Recipe, parse
from infopt.registry import Registry

logger = logging.getLogger(__name__)


@dataclass(slots=True)
class SchemeReport:
    """What a scheme did to a model.

    Attributes:
        scheme: Its name.
        formats: Number of products by the format they got, such as ``q4_1`` or ``bfloat16``.
        backend: Which kernels multiply: ``cpu``, ``reference``, ...
        reason: Why not a faster one.
        path: ``packed``, ``dequantized`` (float weights with the values of the codes), both, or
            ``float`` where nothing is quantized.
        weight_bits: Bits per weight of the products, scales and zero points included.
        on_stored_grid: Whether the codes of the layers (the head has a format of its own) stand for
            exactly the stored weights, which come from a file quantized that way: such a result
            says nothing about the scheme. None: not known.
        details: What calibration and quantization recorded.
    """

    scheme: str
    formats: Counter[str] = field(default_factory=Counter)
    backend: str = "reference"
    reason: str = "preferred"
    path: str = "float"
    weight_bits: float | None = None
    on_stored_grid: bool | None = None
    details: dict[str, Any] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """Return plain data for records."""
        return {
            "scheme": self.scheme,
            "formats": dict(self.formats),
            "backend": self.backend,
            "reason": self.reason,
            "path": self.path,
            "weight_bits": self.weight_bits,
            "on_stored_grid": self.on_stored_grid,
            **({"details": self.details} if self.details else {}),
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
"""Schemes of one name each; names with options (``int4-awq-g64``) are in
:mod:`infopt.quantization.names`."""


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
    check_name(name)
    if is_coded(checkpoint):
        return importlib.import_module("infopt.quantization.coded_scheme").stored_codes(
            name, checkpoint, ops, device, dtype
        )
    recipe = parse(name)
    if recipe is None:
        return SCHEMES.get(name)(checkpoint, ops, device, dtype)
    return importlib.import_module("infopt.quantization.coded_scheme").codes_made_now(
        recipe, checkpoint, ops, device, dtype
    )


def is_coded(checkpoint: Checkpoint) -> bool:
    """Tell whether a checkpoint's layers are codes of a quantization_config."""
    return bool(checkpoint.coded_layers)


def check_experts(recipe: Recipe, config: ModelConfig) -> None:
    """Refuse a scheme for experts where there are none.

    Raises:
        ConfigError: The model is dense.
    """
    if recipe.experts is not None and config.moe is None:
        raise ConfigError(
            f"quantization={recipe.name!r} is for mixtures of experts, and this model is dense.",
            field="quantization",
            value=recipe.name,
            remedy=f"Use {recipe.name.partition('+')[0]!r}.",
        )


def check_name(name: str) -> None:
    """Refuse a name that stands for no scheme.

    Raises:
        ConfigError: Holds the nearest name and all valid ones.
    """
    for module in ("stored", "bnb_scheme"):
        importlib.import_module(f"infopt.quantization.{module}")
    if name in SCHEMES or parse(name) is not None:
        return
    known = [*SCHEMES.names(), *EXAMPLES]
    raise ConfigError(
        f"Unknown quantization {name!r}.{nearest(name, known)}",
        field="quantization",
        value=name,
        remedy=f"Valid names: {', '.join(known)}; int2, int3, int4 and int8 take -rtn, -awq or "
        "-gptq, a group (-g32, -g64, ... or -channel), -asym and -a8; "
        "+experts-... codes routed experts otherwise.",
    )
