"""What a linear layer is made from, and who makes it: the seam for weight formats."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch

from infopt.ops.linear import Linear


class WeightSource(Protocol):
    """Where weights come from; checkpoints implement this."""

    def get(self, name: str, dtype: torch.dtype = ...) -> torch.Tensor:
        """Return the tensor with a canonical name."""
        ...


@dataclass(frozen=True, slots=True)
class LinearSource:
    """The tensors of one linear layer; nothing is read before it is asked for.

    Attributes:
        weights: Where they are.
        name: Canonical name of the layer, without ``.weight``.
        parts: Names of the projections whose rows are packed into one product.
        has_bias: Whether each of them has a bias.
        dtype: Compute type.
        device: Where the layer runs.
    """

    weights: WeightSource
    name: str
    parts: Sequence[str]
    has_bias: bool
    dtype: torch.dtype
    device: torch.device

    @property
    def weight_names(self) -> list[str]:
        """Canonical names of the weights, in the order of the rows."""
        return [f"{part}.weight" for part in self.parts]

    def weight(self) -> torch.Tensor:
        """Read the weight, ``(out_features, in_features)``, in the compute type."""
        return self._packed(self.weight_names)

    def bias(self) -> torch.Tensor | None:
        """Read the bias, ``(out_features,)``, if there is one."""
        return self._packed([f"{p}.bias" for p in self.parts]) if self.has_bias else None

    def _packed(self, names: Sequence[str]) -> torch.Tensor:
        tensors = [self.weights.get(name, self.dtype).to(self.device) for name in names]
        return tensors[0] if len(tensors) == 1 else torch.cat(tensors)


class LinearFactory(Protocol):
    """Makes a layer; quantization schemes implement this."""

    def __call__(self, source: LinearSource) -> Linear:
        """Read what is needed and return the layer, ready to multiply."""
        ...
